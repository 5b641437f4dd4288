// The handlers behind the router's table. Each runs on a worker and answers call.exchange, now or later.
#pragma once

#include "server/server_context.h"

namespace fathom {

void handle_chat_completions(RouteCall& call);  // POST /v1/chat/completions
void handle_completions(RouteCall& call);       // POST /v1/completions
void handle_responses(RouteCall& call);         // POST /v1/responses
void handle_messages(RouteCall& call);          // POST /v1/messages
void handle_input_tokens(RouteCall& call);      // POST /v1/responses/input_tokens
void handle_count_tokens(RouteCall& call);      // POST /v1/messages/count_tokens
void handle_generate(RouteCall& call);          // POST /generate

void handle_models(RouteCall& call);          // GET /v1/models
void handle_model(RouteCall& call);           // GET /v1/models/NAME
void handle_tokenize(RouteCall& call);        // POST /tokenize
void handle_detokenize(RouteCall& call);      // POST /detokenize
void handle_tokenizer_info(RouteCall& call);  // GET /tokenizer_info
void handle_flush_cache(RouteCall& call);     // GET, POST /flush_cache, /reset_prefix_cache
void handle_server_info(RouteCall& call);     // GET /get_server_info, /server_info
void handle_start_profile(RouteCall& call);   // POST /start_profile
void handle_stop_profile(RouteCall& call);    // POST /stop_profile
void handle_version(RouteCall& call);         // GET /version
void handle_health(RouteCall& call);          // GET /health
void handle_metrics(RouteCall& call);         // GET /metrics
void handle_requests(RouteCall& call);        // GET /v1/requests
void handle_request(RouteCall& call);         // GET /v1/requests/ID
// GET /v1/requests/ID/timeline; id: the request's.
void reply_timeline(RouteCall& call, std::string_view id);
void handle_page(RouteCall& call);  // GET /

}  // namespace fathom
