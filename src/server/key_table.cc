#include "server/key_table.h"

#include <charconv>
#include <map>
#include <sstream>

namespace fathom {
namespace {

constexpr std::int64_t kMinuteUs = 60'000'000;

bool same_secret(std::string_view a, std::string_view b) {
  // Every byte of the candidate is looked at, whatever differs first.
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned>(static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(other));
  }
  return difference == 0;
}

std::string_view sent_secret(const HttpRequest& request) {
  std::string_view bearer = request.header("authorization");
  if (bearer.size() > 7 && (bearer.starts_with("Bearer ") || bearer.starts_with("bearer "))) return bearer.substr(7);
  return request.header("x-api-key");
}

}  // namespace

KeyTable::KeyTable(std::vector<ApiKey> keys) : keys_(std::move(keys)) {
  for (const auto& key : keys_) labels_.push_back(key.label);
  if (keys_.empty()) labels_.push_back("anonymous");
  uses_.resize(labels_.size());
}

std::optional<std::size_t> KeyTable::find(const HttpRequest& request) const {
  if (keys_.empty()) return 0;
  const std::string_view secret = sent_secret(request);
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (same_secret(secret, keys_[i].secret)) found = i;
  }
  return found;
}

std::optional<ApiError> KeyTable::admit(std::size_t index, std::int64_t now_us) {
  const std::lock_guard lock(mutex_);
  Use& use = uses_[index];
  if (!keys_.empty()) {
    const ApiKey& key = keys_[index];
    if (key.max_concurrent > 0 && use.num_running >= key.max_concurrent) {
      return too_many("key " + key.label + ": " + std::to_string(use.num_running) +
                      " requests are being answered, and no more are allowed at once");
    }
    if (key.max_per_minute > 0) {
      while (!use.begun_us.empty() && use.begun_us.front() <= now_us - kMinuteUs) use.begun_us.pop_front();
      if (static_cast<std::int32_t>(use.begun_us.size()) >= key.max_per_minute) {
        const std::int64_t wait_us = use.begun_us.front() + kMinuteUs - now_us;
        return too_many("key " + key.label + ": " + std::to_string(key.max_per_minute) +
                            " requests a minute are allowed, and have been made",
                        static_cast<int>(wait_us / 1'000'000 + 1));
      }
      use.begun_us.push_back(now_us);
    }
  }
  ++use.num_running;
  return std::nullopt;
}

void KeyTable::release(std::size_t index) {
  const std::lock_guard lock(mutex_);
  --uses_[index].num_running;
}

std::int32_t KeyTable::num_running(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  return uses_[index].num_running;
}

Result<std::vector<ApiKey>> parse_key_file(std::string_view text) {
  std::vector<ApiKey> keys;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string where = "key file, line " + std::to_string(number) + ": ";
    // A '#' within a word is the word's: secrets may have one.
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) line.resize(i);
    }
    std::istringstream words(line);
    ApiKey key;
    if (!(words >> key.label)) continue;
    if (!(words >> key.secret)) return invalid_argument(where + "expected \"label secret\", found a label only");
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      std::int32_t* const target = name == "max_concurrent"   ? &key.max_concurrent
                                   : name == "max_per_minute" ? &key.max_per_minute
                                                              : nullptr;
      const char* const begin = word.data() + (equals == std::string::npos ? word.size() : equals + 1);
      const char* const end = word.data() + word.size();
      std::int32_t value = 0;
      const auto [rest, wrong] = std::from_chars(begin, end, value);
      if (target == nullptr || wrong != std::errc() || rest != end || value < 0) {
        return invalid_argument(where + "found '" + word + "', expected max_concurrent=N or max_per_minute=N");
      }
      *target = value;
    }
    keys.push_back(std::move(key));
    if (Status status = check_keys(keys); !status.ok()) return invalid_argument(where + status.message());
  }
  return keys;
}

Status check_keys(const std::vector<ApiKey>& keys) {
  std::map<std::string_view, const ApiKey*> by_label, by_secret;
  for (const ApiKey& key : keys) {
    if (!by_label.emplace(key.label, &key).second) {
      return invalid_argument("label '" + key.label + "' stands twice");
    }
    if (const auto [other, is_new] = by_secret.emplace(key.secret, &key); !is_new) {
      return invalid_argument("the keys '" + other->second->label + "' and '" + key.label +
                              "' have the same secret, so that their requests cannot be told apart");
    }
  }
  return {};
}

}  // namespace fathom
