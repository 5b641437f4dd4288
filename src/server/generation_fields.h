// The fields that generation requests of the OpenAI kind and the native route share, read into the engine's request.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "server/request_fields.h"
#include "server/server_options.h"

namespace fathom {

struct StreamFields {
  bool stream = false;
  bool include_usage = false;     // a last chunk with usage and no choices
  bool continuous_usage = false;  // usage in every chunk too
};

// temperature, top_p, top_k, min_p, penalties, logit_bias, seed. Defaults: the request, then the flags, then
// generation_config.json.
void read_sampling(RequestFields& fields, const ServerOptions& options, const ServedModel& model, Request& request);
// stop (a string or a list; `stop_key` is its name), stop_token_ids, include_stop_str_in_output, ignore_eos,
// skip_special_tokens, min_tokens.
void read_stops(RequestFields& fields, Request& request, const std::string& stop_key = "stop");
// n, priority, cache_salt.
void read_shares(RequestFields& fields, const ServedModel& model, Request& request);
// `keys` in order of precedence; the first that is there counts. Leaves -1 (as many as fit) when none is.
void read_max_tokens(RequestFields& fields, std::initializer_list<std::string_view> keys, std::int64_t lowest,
                     Request& request);
StreamFields read_stream(RequestFields& fields);
// Fields of OpenAI's APIs that have no effect here, and are held to their kind all the same: who sends the wrong one
// has made a mistake. user, store, metadata, service_tier, safety_identifier, prompt_cache_key, add_special_tokens.
void read_unused(RequestFields& fields);
// The model named must be one that is served; no name is any.
void read_model(RequestFields& fields, const ServerOptions& options);

// Holds the prompt against the context: 400 with both counts when there is no room for one token more (for none, when
// max_tokens is 0), else max_tokens is cut to what is left.
std::optional<ApiError> fit_to_context(const ServedModel& model, std::string_view param, Request& request);

// Text that cannot fit whatever its tokens are is refused before it is tokenised: the same error as above.
std::optional<ApiError> check_prompt_bytes(const ServedModel& model, std::string_view param, std::size_t num_bytes);

// response_format, guided_json, guided_regex, guided_choice, structured_outputs {json, json_object, regex, choice}:
// sets make_constraint.
void read_constraint(RequestFields& fields, const ServedModel& model, Request& request);
// What other APIs have in response_format's place: `format` is {type, schema}, and errors name it `where`.
void read_format(RequestFields& fields, const JsonValue& format, std::string_view where, const ServedModel& model,
                 Request& request);

}  // namespace fathom
