#include "server/http/http_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

namespace fathom {
namespace {

std::string system_reason() { return std::strerror(errno); }

}  // namespace

Status HttpClient::connect() {
  close();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host_.c_str(), std::to_string(port_).c_str(), &hints, &found); code != 0) {
    return not_found("resolving " + host_ + ": " + gai_strerror(code));
  }
  Status last = unavailable("connecting to " + host_ + ": no address");
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int s = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (s < 0) continue;
    if (::connect(s, a->ai_addr, a->ai_addrlen) == 0) {
      const int one = 1;
      setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      socket_ = s;
      last = {};
      break;
    }
    last = unavailable("connecting to " + host_ + ":" + std::to_string(port_) + ": " + system_reason());
    ::close(s);
  }
  freeaddrinfo(found);
  return last;
}

void HttpClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
  in_.clear();
}

void HttpClient::reset() {
  if (socket_ >= 0) {
    const linger hard{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  }
  close();
}

Status HttpClient::send_raw(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return unavailable("sending: " + system_reason());
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Status HttpClient::fill() {
  pollfd wait{socket_, POLLIN, 0};
  const int ready = ::poll(&wait, 1, static_cast<int>(timeout_.count()));
  if (ready == 0) return unavailable("reading: nothing came within " + std::to_string(timeout_.count()) + " ms");
  char buffer[64 << 10];
  const ssize_t n = ::recv(socket_, buffer, sizeof buffer, 0);
  if (n < 0) return unavailable("reading: " + system_reason());
  if (n == 0) return unavailable("reading: the server closed the connection");
  in_.append(buffer, static_cast<std::size_t>(n));
  return {};
}

bool HttpClient::wait_closed(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd wait{socket_, POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(left.count())) <= 0) continue;
    char buffer[4096];
    if (::recv(socket_, buffer, sizeof buffer, 0) <= 0) return true;
  }
}

Result<HttpClientReply> HttpClient::read_reply(const OnData& on_data) {
  std::size_t head_end = 0;
  while ((head_end = in_.find("\r\n\r\n")) == std::string::npos) FATHOM_RETURN_IF_ERROR(fill());
  const std::string head = in_.substr(0, head_end);
  in_.erase(0, head_end + 4);
  HttpClientReply reply;
  if (head.size() < 12) return data_loss("the reply starts with '" + head + "'");
  std::from_chars(head.data() + 9, head.data() + 12, reply.status);
  for (std::size_t line = head.find("\r\n"); line != std::string::npos;) {
    const std::size_t begin = line + 2;
    line = head.find("\r\n", begin);
    const std::string text = head.substr(begin, line == std::string::npos ? std::string::npos : line - begin);
    const std::size_t colon = text.find(": ");
    if (colon == std::string::npos) continue;
    std::string name = text.substr(0, colon);
    for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    reply.headers.emplace_back(std::move(name), text.substr(colon + 2));
  }
  if (reply.status == 100) return read_reply(on_data);

  const auto deliver = [&](std::string_view data) {
    if (!on_data) {
      reply.body += data;
      return true;
    }
    return on_data(data);
  };
  if (reply.header("transfer-encoding") == "chunked") {
    while (true) {
      std::size_t end = 0;
      while ((end = in_.find("\r\n")) == std::string::npos) FATHOM_RETURN_IF_ERROR(fill());
      std::size_t size = 0;
      const auto [last, error] = std::from_chars(in_.data(), in_.data() + end, size, 16);
      if (error != std::errc{} || last != in_.data() + end) return data_loss("bad chunk size in the reply");
      while (in_.size() < end + 2 + size + 2) FATHOM_RETURN_IF_ERROR(fill());
      if (size > 0 && !deliver(std::string_view(in_).substr(end + 2, size))) {
        close();
        return reply;
      }
      in_.erase(0, end + 2 + size + 2);
      if (size == 0) break;
    }
  } else {
    std::size_t size = 0;
    const std::string_view length = reply.header("content-length");
    std::from_chars(length.data(), length.data() + length.size(), size);
    while (in_.size() < size) FATHOM_RETURN_IF_ERROR(fill());
    deliver(std::string_view(in_).substr(0, size));
    in_.erase(0, size);
  }
  if (reply.header("connection") == "close") close();
  return reply;
}

Result<HttpClientReply> HttpClient::request(std::string_view method, std::string_view path, std::string_view body,
                                            const HttpHeaders& headers, const OnData& on_data) {
  std::string text(method);
  text += " ";
  text += path;
  text += " HTTP/1.1\r\nHost: " + host_ + "\r\n";
  for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
  if (!body.empty() || method == "POST") {
    text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  text += "\r\n";
  text += body;
  for (const bool fresh : {false, true}) {
    const bool kept = socket_ >= 0;
    if (!kept) FATHOM_RETURN_IF_ERROR(connect());
    bool heard = false;
    Status sent = send_raw(text);
    if (sent.ok()) sent = in_.empty() ? fill() : Status{};
    heard = sent.ok();
    if (heard) return read_reply(on_data);
    close();
    if (!kept || fresh) return sent;
  }
  return internal_error("unreachable");
}

void SseReader::give(std::string_view bytes) {
  for (const char c : bytes) {
    if (c == '\n') {
      take_line(line_);
      line_.clear();
    } else if (c != '\r') {
      line_ += c;
    }
  }
}

void SseReader::take_line(std::string_view line) {
  const auto value_of = [](std::string_view text, std::size_t skip) {
    text.remove_prefix(skip);
    if (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    return text;
  };
  if (line.empty()) {
    if (has_data_) on_event_(event_, data_);
    event_.clear();
    data_.clear();
    has_data_ = false;
  } else if (line.front() == ':') {
    ++num_comments_;
  } else if (line.starts_with("event:")) {
    event_ = value_of(line, 6);
  } else if (line.starts_with("data:")) {
    if (has_data_) data_ += '\n';
    data_ += value_of(line, 5);
    has_data_ = true;
  }
}

}  // namespace fathom
