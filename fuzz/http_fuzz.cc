// Bytes of a connection, in two cuts, through the request parser to the routes, with an engine on the scripted executor
// behind them. No request of any shape may crash, hang, or be answered with a 5xx other than 503
// (overload). Set-up needs the embedded model's tokenizer: run from the repository's root.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "engine/scripted_executor.h"
#include "server/http/request_parser.h"
#include "server/router.h"
#include "server/testing/captured_exchange.h"
#include "text/tokenizer.h"

namespace fathom {
namespace {

[[noreturn]] void finding(const char* what) {
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

ServerContext& context() {
  static ServerContext* const instance = [] {
    static HttpServerCounts counts;
    ServerOptions options;
    options.model_names = {"mini-v4"};
    options.log_requests = false;
    auto* made = new ServerContext(std::move(options));
    made->http_counts = &counts;
    auto tokenizer = open_tokenizer("models/mini-v4");
    if (!tokenizer.ok()) finding(tokenizer.status().message().c_str());
    auto model = std::make_shared<ServedModel>();
    model->tokenizer = std::make_shared<const Tokenizer>(std::move(*tokenizer));
    ScriptedOptions scripted;
    scripted.limits.vocab_size = static_cast<std::int32_t>(model->tokenizer->vocab_size());
    scripted.limits.max_length_tokens = 512;
    scripted.eos_share = 0.1;
    scripted.step_us = scripted.row_us = 0;
    auto engine = Engine::make({}, std::make_unique<ScriptedExecutor>(std::move(scripted)), model->tokenizer);
    if (!engine.ok()) finding(engine.status().message().c_str());
    model->engine = std::move(*engine);
    model->longest_token_bytes = 64;
    made->served = std::move(model);
    return made;
  }();
  return *instance;
}

}  // namespace
}  // namespace fathom

namespace {

// The same request with the length that its body has, so that a changed body reaches its route.
std::string with_right_length(const std::string& bytes) {
  constexpr std::string_view kEnd = "\r\n\r\n", kLength = "Content-Length:";
  const std::size_t end = bytes.find(kEnd);
  if (end == std::string::npos) return bytes;
  std::string head = bytes.substr(0, end + 2);
  if (const std::size_t at = head.find(kLength); at != std::string::npos)
    head.erase(at, head.find("\r\n", at) + 2 - at);
  const std::size_t size = bytes.size() - end - kEnd.size();
  return head + std::string(kLength) + " " + std::to_string(size) + bytes.substr(end);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace fathom;
  if (size < 2) return 0;
  // The first byte says where the stream is cut, and its lowest bit whether the length is put right.
  std::string all(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) != 0) all = with_right_length(all);
  const std::size_t cut = all.size() * data[0] / 256;
  HttpRequestParser parser(HttpParseLimits{4096, 64 << 10});
  std::string buffer;
  for (const std::string& part : {all.substr(0, cut), all.substr(cut)}) {
    buffer += part;
    buffer.erase(0, parser.feed(buffer));
  }
  (void)parser.expects_continue();
  if (parser.state() == HttpRequestParser::State::kFailed &&
      (parser.error_status() < 400 || parser.error_status() >= 500 || parser.error_message().empty())) {
    finding("a refusal without status or reason");
  }
  if (parser.state() != HttpRequestParser::State::kDone) return 0;
  const auto exchange = std::make_shared<CapturedExchange>(parser.take_request());
  answer_request(context(), exchange);
  const auto replied = exchange->wait(std::chrono::seconds(8));
  if (!replied) finding("no answer");
  const int status = *replied;
  if (status < 200 || (status >= 500 && status != 503)) finding("a status that no request may cause");
  return 0;
}
