#include "server/scripted_replies.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_encoding.h"

namespace fathom {
namespace {

constexpr std::string_view kOpen = "⟦";
constexpr std::string_view kClose = "⟧";
constexpr std::string_view kTimes = "×";
constexpr std::string_view kMisdrafted = "✗";

struct Reply {
  std::size_t begin = 0;  // index of its first token in the context
  std::vector<TokenId> tokens;
};

std::string unfold(std::string text) {
  if (text.starts_with(kMisdrafted)) text.erase(0, kMisdrafted.size());
  const std::size_t times = text.rfind(kTimes);
  if (times == std::string::npos) return text;
  const char* const first = text.data() + times + kTimes.size();
  const char* const last = text.data() + text.size();
  int count = 0;
  if (std::from_chars(first, last, count).ptr != last || count < 0) return text;
  const std::string part = text.substr(0, times);
  std::string out;
  for (int i = 0; i < count; ++i) out += part;
  return out;
}

class Script {
 public:
  explicit Script(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)),
        assistant_(tokenizer_->find_added_token(kAssistantText).value_or(-1)),
        think_open_(tokenizer_->find_added_token(kThinkOpenText).value_or(-1)),
        think_close_(tokenizer_->find_added_token(kThinkCloseText).value_or(-1)) {}

  std::optional<TokenId> next(std::span<const TokenId> context) {
    const Reply reply = find(context);
    if (reply.begin == 0 || reply.begin > context.size()) return std::nullopt;
    const std::size_t done = context.size() - reply.begin;
    return done < reply.tokens.size() ? reply.tokens[done] : tokenizer_->eos_id();
  }

 private:
  Reply find(std::span<const TokenId> context) {
    // Consecutive calls ask about one context after another of the same sequence: its beginning is looked at once.
    if (last_.begin > 0 && context.size() >= last_.begin && last_prompt_.size() == last_.begin &&
        std::equal(last_prompt_.begin(), last_prompt_.end(), context.begin()) && last_size_ + 1 == context.size()) {
      last_size_ = context.size();
      return last_;
    }
    last_ = read(context);
    last_size_ = context.size();
    last_prompt_.assign(context.begin(), context.begin() + static_cast<std::ptrdiff_t>(last_.begin));
    return last_;
  }

  Reply read(std::span<const TokenId> context) const {
    Reply reply;
    std::string text;
    std::vector<std::size_t> ends;  // of each token, in text
    for (const TokenId id : context) {
      text += tokenizer_->token_bytes(id);
      ends.push_back(text.size());
    }
    const std::size_t close = text.rfind(kClose);
    const std::size_t open = close == std::string::npos ? close : text.rfind(kOpen, close);
    if (open == std::string::npos) return reply;
    const std::string content = text.substr(open + kOpen.size(), close - open - kOpen.size());
    const auto end =
        static_cast<std::size_t>(std::lower_bound(ends.begin(), ends.end(), close + kClose.size()) - ends.begin());
    reply.begin = end + 1;
    for (std::size_t i = end + 1; i < context.size(); ++i) {
      if (context[i] != assistant_) continue;
      reply.begin = i + 1;
      if (i + 1 < context.size() && (context[i + 1] == think_open_ || context[i + 1] == think_close_)) ++reply.begin;
      break;
    }
    reply.tokens = tokenizer_->encode(unfold(content), SpecialTokens::kRecognise);
    return reply;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  TokenId assistant_, think_open_, think_close_;
  Reply last_;
  std::size_t last_size_ = 0;
  std::vector<TokenId> last_prompt_;
};

}  // namespace

std::function<bool(std::span<const TokenId>)> make_scripted_misdrafts(std::shared_ptr<const Tokenizer> tokenizer) {
  return [tokenizer = std::move(tokenizer)](std::span<const TokenId> context) {
    std::string text;
    for (const TokenId id : context) text += tokenizer->token_bytes(id);
    const std::size_t close = text.rfind(kClose);
    const std::size_t open = close == std::string::npos ? close : text.rfind(kOpen, close);
    return open != std::string::npos && std::string_view(text).substr(open + kOpen.size()).starts_with(kMisdrafted);
  };
}

std::function<std::optional<TokenId>(std::span<const TokenId>)> make_scripted_replies(
    std::shared_ptr<const Tokenizer> tokenizer) {
  return [script = std::make_shared<Script>(std::move(tokenizer))](std::span<const TokenId> context) {
    return script->next(context);
  };
}

}  // namespace fathom
