#include "server/http/request_parser.h"

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace fathom {
namespace {

namespace http = boost::beast::http;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string_view as_view(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

struct HttpRequestParser::Parser {
  http::request_parser<http::string_body> beast;
  HttpParseLimits limits;
  State state = State::kHeader;
  bool begun = false;
  int error_status = 0;
  std::string error_message;

  void fail(int status, std::string message) {
    state = State::kFailed;
    error_status = status;
    error_message = std::move(message);
  }
  void fail(const boost::system::error_code& error) {
    if (error == http::error::header_limit) {
      fail(431, "the header is longer than " + std::to_string(limits.max_header_bytes) + " bytes");
    } else if (error == http::error::body_limit) {
      fail(413, "the body is longer than " + std::to_string(limits.max_body_bytes) + " bytes, the most that is taken");
    } else {
      fail(400, "this is no HTTP/1.1 request the server takes: " + error.message());
    }
  }
  // What would leave open where the body ends, or who is asked: a proxy in front may read it otherwise.
  std::string ambiguity() const {
    const auto coding = beast.get().find(http::field::transfer_encoding);
    if (coding != beast.get().end() && lower(as_view(coding->value())) != "chunked") {
      return "Transfer-Encoding: found '" + std::string(as_view(coding->value())) + "', expected chunked or none";
    }
    return beast.get().count(http::field::host) > 1 ? "Host stands twice" : "";
  }
};

HttpRequestParser::HttpRequestParser(const HttpParseLimits& limits) : parser_(std::make_unique<Parser>()) {
  parser_->beast.eager(true);
  parser_->beast.header_limit(static_cast<std::uint32_t>(limits.max_header_bytes));
  parser_->beast.body_limit(limits.max_body_bytes);
  parser_->limits = limits;
}

HttpRequestParser::~HttpRequestParser() = default;
HttpRequestParser::HttpRequestParser(HttpRequestParser&&) noexcept = default;
HttpRequestParser& HttpRequestParser::operator=(HttpRequestParser&&) noexcept = default;

HttpRequestParser::State HttpRequestParser::state() const { return parser_->state; }
int HttpRequestParser::error_status() const { return parser_->error_status; }
const std::string& HttpRequestParser::error_message() const { return parser_->error_message; }

std::size_t HttpRequestParser::feed(std::string_view bytes) {
  Parser& p = *parser_;
  std::size_t used = 0;
  if (!p.begun) {
    // Line ends before a request, which some clients send after a body (RFC 9112, section 2.2).
    while (bytes.substr(used).starts_with("\r\n")) used += 2;
    p.begun = used < bytes.size() && bytes.substr(used) != "\r";
    if (!p.begun) return used;
  }
  while (p.state != State::kDone && p.state != State::kFailed && used < bytes.size()) {
    boost::system::error_code error;
    std::size_t n = 0;
    try {  // allocation inside the library
      n = p.beast.put(boost::asio::const_buffer(bytes.data() + used, bytes.size() - used), error);
    } catch (const std::exception& e) {
      p.fail(413, std::string("the request cannot be read: ") + e.what());
      break;
    }
    used += n;
    if (error == http::error::need_more) {
      // The library counts the header against its limit only when it is complete.
      if (!p.beast.is_header_done() && bytes.size() - used > p.limits.max_header_bytes) {
        p.fail(http::error::header_limit);
      }
      break;
    }
    if (error) {
      p.fail(error);
      break;
    }
    if (p.state == State::kHeader && p.beast.is_header_done()) {
      if (std::string found = p.ambiguity(); !found.empty()) {
        p.fail(400, std::move(found));
        break;
      }
    }
    if (p.beast.is_done()) {
      p.state = State::kDone;
    } else if (p.beast.is_header_done()) {
      p.state = State::kBody;
    }
    if (n == 0) break;
  }
  if (p.state == State::kHeader && p.beast.is_header_done()) p.state = State::kBody;
  return used;
}

bool HttpRequestParser::begun() const { return parser_->begun; }

bool HttpRequestParser::expects_continue() const {
  if (parser_->state != State::kBody) return false;
  const auto field = parser_->beast.get().find(http::field::expect);
  return field != parser_->beast.get().end() && lower(as_view(field->value())) == "100-continue";
}

HttpRequest HttpRequestParser::take_request() {
  auto message = parser_->beast.release();
  HttpRequest request;
  request.method = std::string(as_view(message.method_string()));
  std::string_view target = as_view(message.target());
  // As a proxy is asked: scheme and host before the path.
  if (const std::size_t scheme = target.find("://"); scheme != std::string_view::npos && target.front() != '/') {
    const std::size_t path = target.find('/', scheme + 3);
    target = path == std::string_view::npos ? "/" : target.substr(path);
  }
  const std::size_t mark = target.find('?');
  request.path = std::string(target.substr(0, mark));
  if (mark != std::string_view::npos) request.query = std::string(target.substr(mark + 1));
  for (const auto& field : message) {
    request.headers.emplace_back(lower(as_view(field.name_string())), std::string(as_view(field.value())));
  }
  request.keep_alive = message.keep_alive();
  request.http_1_0 = message.version() < 11;
  request.body = std::move(message.body());
  return request;
}

}  // namespace fathom
