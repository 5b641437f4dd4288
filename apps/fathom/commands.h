// One struct of options and one function per subcommand. flags*.cc and main.cc own the command line (no other file sees
// its library); each cmd_*.cc owns one subcommand. Functions return the exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fathom::app {

struct TokenizeOptions {
  std::string tokenizer;  // tokenizer.json or a model directory
  bool decode = false;    // {"ids"} -> {"text"} instead of {"text"} -> {"ids"}
  bool special = true;    // encoding recognises added tokens; decoding writes special ones
};
int run_tokenize(const TokenizeOptions& options);

struct RenderOptions {
  std::string model;     // read only when `release` is empty
  std::string messages;  // file
  bool thinking = true;
  bool keep_thinking = false;  // earlier reasoning stays in the prompt
  std::string effort;          // low, high, max; empty: none asked for
  std::string release;         // preview, 0731; empty: from the draft tensors
};
int run_render(const RenderOptions& options);

struct ParseOptions {
  bool thinking = true;
};
int run_parse(const ParseOptions& options);

struct VerifyOptions {
  std::string model;  // directory or one .safetensors file
  bool json = false;
};
int run_verify(const VerifyOptions& options);  // 0 right, 1 wrong

struct InspectOptions {
  std::string model;
  std::int64_t max_context = 0;  // tokens; 0: the model's longest
  std::int64_t max_sequences = 1;
  std::int64_t memory_bytes = 0;  // 0: this machine's
  bool json = false;
};
int run_inspect(const InspectOptions& options);

struct SynthOptions {
  std::string config;       // flash, flash-0731, pro, mini, or a config.json
  std::int32_t layers = 0;  // 0: all
  std::int32_t experts = 0;
  std::uint64_t seed = 1;
  std::string out;
  bool headers_only = false;
  std::string experts_format = "mxfp4";  // nvfp4, fp8
  std::string draft;                     // none, mtp, dspark; empty: what the config says
};
int run_synth(const SynthOptions& options);

struct ConvertOptions {
  std::string to;  // nvfp4
  std::string model;
  std::string out;
};
int run_convert(const ConvertOptions& options);

// Flags of every subcommand that runs a model.
struct ModelFlags {
  std::string model;  // directory; empty: models/mini-v4, found from the current directory or the program's
  std::string numerics = "serve";
  std::string device = "auto";        // cpu, cuda, emulated; auto until the flags are read
  int threads = 0;                    // 0: all CPUs this process may use
  std::vector<std::string> variants;  // operation=name
  std::int64_t max_context = 0;       // tokens; 0: what the model takes
};

// What is not given follows generation_config.json.
struct SamplingFlags {
  std::optional<float> temperature, top_p;
  int top_k = 0;
  float min_p = 0.0f;
  std::optional<std::uint64_t> seed;  // absent: drawn from the machine's entropy
  std::int64_t max_tokens = 0;        // 0: until the context is full
  std::vector<std::string> stops;
};

struct GenerateOptions {
  ModelFlags model;
  SamplingFlags sampling;
  std::optional<std::string> prompt;  // one user message, or with `raw` the text to complete
  std::string messages;               // file: {"messages": [...], "tools": [...]}
  bool raw = false;
  bool thinking = true;
  std::string effort;
  std::string draft = "off";  // off, a number, adaptive
  bool json = false;
};
int run_generate(const GenerateOptions& options);

struct ChatOptions {
  ModelFlags model;
  SamplingFlags sampling;
  bool thinking = true;
  std::string effort;
  std::string system;         // system message
  std::string draft = "off";  // off, a number, adaptive
};
int run_chat(const ChatOptions& options);

struct LogitsOptions {
  ModelFlags model;
  std::string ids;                 // file: a list of lists of ids
  std::string positions = "last";  // "last", "all", or "0,5,7"
  std::string out;                 // .safetensors
  std::string taps;                // .safetensors; empty: none
};
int run_logits(const LogitsOptions& options);

struct SelfcheckOptions {
  ModelFlags model;
};
int run_selfcheck(const SelfcheckOptions& options);

struct SelftestCommandOptions {
  std::string model;            // whose layers are compared
  std::string device = "auto";  // cpu, cuda, or cuda where there is one
  int threads = 0;
  bool wide = true;  // times at Flash's width, on CUDA
};
int run_selftest_command(const SelftestCommandOptions& options);  // 1 when a variant is wrong

struct BenchOptions {
  ModelFlags model;
  std::int64_t chunk = 512;  // prefill rows of a step
  std::vector<std::int64_t> positions = {200, 4000};
  std::int64_t prefill = 2048;
  int tokens = 6;  // decoded in a round
  int rounds = 5;
  std::vector<std::string> variants = {"cpu", "reference"};  // bench ops
  bool json = false;                                         // bench decode
  std::string
      synthetic;  // bench decode: flash, flash-0731, pro, mini or a config.json: random weights instead of a model
  std::int32_t layers = 4;                                     // of the synthetic model
  std::vector<std::int32_t> batches = {1, 8, 32, 64, 128};     // of the synthetic model's steps
  std::vector<std::int32_t> chunks = {512, 2048};              // rows of a prompt's chunk, in steps of their own
  std::vector<std::int64_t> contexts = {1024, 8192, 131'072};  // and their contexts
};
int run_bench_ops(const BenchOptions& options);
int run_bench_decode(const BenchOptions& options);     // 1 when a bar is missed
int run_bench_synthetic(const BenchOptions& options);  // likewise

struct BenchDraftOptions {
  ModelFlags model;
  std::vector<std::int32_t> batches = {1, 4, 16, 64};
  std::int32_t most = 5;  // depths 0 to this, and adaptive with at most this
  int repeats = 9;
  int warm_ups = 8;      // runs of each depth before those, at most: until its steps have no new shapes
  double seconds = 0.3;  // of one run, about
  bool parts = false;    // also print what the steps' parts took
  bool graphs = true;    // false: launch every step, as the fall-back does
  bool json = false;     // also print the figures as JSON
};
int run_bench_draft(const BenchDraftOptions& options);  // 1 when adaptive misses its bars

struct ServeOptions {
  ModelFlags model;
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::vector<std::string> served_model_names;  // default: the directory's name
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::int32_t key_max_concurrent = 0;  // of --api-key keys; 0: no bound
  std::int32_t key_max_per_minute = 0;
  std::string cors_origin;
  bool share_prefix_cache = false;
  bool thinking = true;  // where a request says nothing
  std::string effort;    // low, high, max
  std::string release;   // preview, 0731; empty: from the draft tensors
  std::optional<float> temperature, top_p, min_p;
  std::optional<std::int32_t> top_k;
  std::int32_t max_running = 32;
  std::int32_t max_queued_requests = 256;
  std::int64_t max_queued_tokens = 1 << 20;
  std::int32_t max_logprobs = 20;
  std::int64_t cache_memory_bytes = 0;  // 0: half of this machine's memory, or less when less is of use
  std::int32_t prefill_chunk = 128;
  std::int32_t prefill_chunk_alone = 512;
  bool prefix_cache = true;
  bool check_prefix_cache = false;
  std::string drafts = "off";  // off, a number of tokens a step proposes and verifies, or adaptive
  std::int32_t workers = 2;
  std::int64_t max_body_bytes = 32 << 20;
  std::int32_t max_connections = 4096;
  double step_timeout_s = 60;
  double request_timeout_s = 0;  // 0: none
  double header_timeout_s = 10;
  double body_timeout_s = 120;
  double stall_timeout_s = 30;
  double keep_alive_s = 10;
  double drain_s = 30;
  double fault_linger_s = 10;
  std::string log_level = "info";
  bool scripted = false;  // no model: answers from prompts (server/scripted_replies.h)
  std::int64_t scripted_step_us = 0;
  std::int32_t scripted_blocks = 2048;  // context blocks of the scripted executor
  std::string scheduler_log;            // file for the scheduler's calls; empty: none
};
int run_serve(const ServeOptions& options);

struct ReplayOptions {
  std::string file;  // of fathom serve --scheduler-log
  bool events = false;
};
int run_replay(const ReplayOptions& options);  // 0: the same plans, all rules kept; 1 otherwise

struct BenchServeOptions {
  std::string address;  // HOST:PORT of a running server; empty: one of our own is started
  std::string model;    // of that one
  std::vector<std::string> server_flags;
  std::string api_key;
  std::vector<std::int32_t> concurrency = {1, 16, 64};
  std::int32_t requests_per_client = 4;
  std::int32_t repeats = 3;
  std::int64_t input_tokens = 256;
  std::int64_t output_tokens = 64;
  double shared_prefix = 0;
  double cancelled = 0;
  std::uint64_t seed = 1;
  std::string json, html;  // files to write; empty: none
};
int run_bench_serve(const BenchServeOptions& options);  // 1 when an answer is wrong or a request failed

// Profiles are folders of `fathom profile`, or report.json files.
struct CompareCliOptions {
  std::string before, after;
  std::vector<std::string> intended;  // differences that are the change under test: variants, numerics, ...
  std::string fail_if_slower;         // "3%"; empty: no gate
  std::string json, html;             // files; json "-": standard output, in place of the text
  int max_rows = 20;
};
// 0; 1: slower by the gate's share or more, significantly; 2: bad input, or a gate over runs that prove nothing.
int run_compare(const CompareCliOptions& options);

struct FindingsAddOptions {
  std::string before, after;
  std::vector<std::string> intended;
  std::string file = "PROFILE_FINDINGS.md";
  std::string title, hypothesis, change, predict, left;
};
int run_findings_add(const FindingsAddOptions& options);  // 0 appended, 2 refused

struct ProfileOptions {
  ModelFlags model;
  std::int32_t batch = 8;
  std::int64_t context = 512;  // tokens of each sequence before the first step
  std::int32_t steps = 40;     // of each repeat
  std::int32_t warmup = 8;
  std::int32_t repeats = 5;
  std::int32_t drafts = 0;
  std::int64_t chunk = 512;  // prefill rows of a step
  bool exposed = true;
  std::int32_t rounds = 15;  // samples of each exposed time
  double limit_s = 60;       // for exposed time
  bool overhead = false;     // what measuring costs, and nothing else
  bool isolated = false;     // on a GPU: hold attributed times to event times of single calls
  bool one_step = false;     // on a GPU: one step in a profiler's range, for ncu, and nothing else
  std::string synthetic;     // flash, flash-0731, pro, mini or a config.json: random weights instead of a model
  std::int32_t layers = 2;   // of the synthetic model
  std::int32_t experts = 0;  // 0: as many as the config says
  std::string attach;        // HOST:PORT or URL of a running server: its own load is captured
  std::string api_key;
  double attach_limit_s = 60;  // for each repeat's steps
  std::vector<std::string> what_if;
  std::string out = "profile";
};
int run_profile(const ProfileOptions& options);

}  // namespace fathom::app
