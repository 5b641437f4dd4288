// How the server is set up: what the flags of `fathom serve` say.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "grammar/grammar.h"
#include "server/http/http_server.h"
#include "text/chat_encoding.h"
#include "text/tokenizer.h"

namespace fathom {

struct ApiKey {
  std::string label;                // names the key in logs, metrics and limits; never the secret
  std::string secret;               // what the client sends
  std::int32_t max_concurrent = 0;  // requests being answered at once; 0: no bound
  std::int32_t max_per_minute = 0;  // requests begun in any 60 s; 0: no bound
};

// What holds where a request says nothing: the flags, and below them generation_config.json.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int32_t> top_k;
};

struct ServerOptions {
  HttpServerOptions http;
  std::vector<std::string> model_names;  // all are accepted; the first is reported
  std::string version = "0";
  std::vector<ApiKey> keys;         // none: everyone may ask
  std::string cors_origin;          // of Access-Control-Allow-Origin; empty: no CORS headers
  bool share_prefix_cache = false;  // between keys; otherwise a key finds its own prefixes only
  bool thinking = true;             // where a chat request says nothing
  ReasoningEffort effort = ReasoningEffort::kDefault;
  SamplingDefaults sampling;
  std::int32_t num_workers = 2;
  std::int64_t request_timeout_us = 0;        // from submission to the last token; 0: none
  std::int64_t keep_alive_ms = 10'000;        // a comment after so long without data on a stream
  std::size_t max_unsent_bytes = 256 << 10;   // beyond, a stream's answer waits until its reader catches up
  std::int32_t max_prompts = 1024;            // of one completions request
  std::int32_t max_outstanding_prompts = 32;  // of those, with the engine at once
  bool log_requests = true;
};

// What captures say of the run they were taken from.
struct RunFacts {
  std::string backend, device, model, numerics;
  std::string commit;  // that the program was built from; empty: not known
  std::int32_t num_threads = 0;
  std::map<std::string, std::string> variants;  // operation -> the variant that was chosen
};

// What is served once loading is over.
struct ServedModel {
  std::unique_ptr<Engine> engine;
  std::shared_ptr<const Tokenizer> tokenizer;
  Release release = Release::k0731;
  std::string root;  // where it was loaded from
  SamplingDefaults generation_config;
  RunFacts run;
  std::size_t longest_token_bytes = 1;       // set by Server::set_model
  std::shared_ptr<GrammarCompiler> grammar;  // null: requests for constrained output are refused

  std::int64_t context_tokens() const { return engine->limits().max_length_tokens; }
};

}  // namespace fathom
