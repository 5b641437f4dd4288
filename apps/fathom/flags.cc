#include "flags.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "device_choice.h"

namespace fathom::app {
namespace {

constexpr double kMostSeconds = 1e9;

std::string found_expected(const std::string& text, const std::string& expected) {
  return "found " + (text.empty() ? "an empty text" : text) + ", expected " + expected;
}

FlagValue not_empty(const std::string& shown, const std::string& expected) {
  const auto check = [expected](std::string& text) { return text.empty() ? found_expected(text, expected) : ""; };
  return {shown, CLI::Validator(check, "")};
}

}  // namespace

FlagValue whole_number(std::int64_t least, std::uint64_t most) {
  std::string expected = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  const auto check = [=](std::string& text) -> std::string {
    const char* end = text.data() + text.size();
    std::uint64_t value = 0;
    if (least < 0 && text == "-1") return {};
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    const bool is_whole = error == std::errc() && rest == end && (text.size() == 1 || text[0] != '0');
    if (!is_whole || value > most || (least > 0 && value < static_cast<std::uint64_t>(least))) {
      return found_expected(text, expected);
    }
    return {};
  };
  return {"N", CLI::Validator(check, "")};
}

FlagValue positive() { return whole_number(1, kMost64); }
FlagValue positive32() { return whole_number(1, kMost32); }
FlagValue count32() { return whole_number(0, kMost32); }
FlagValue seed_value() { return whole_number(0, std::numeric_limits<std::uint64_t>::max()); }

FlagValue number(double least, double most, const std::string& expected) {
  const auto check = [=](std::string& text) -> std::string {
    char* rest = nullptr;
    const double value = std::strtod(text.c_str(), &rest);
    const bool is_number = !text.empty() && *rest == '\0' && std::isspace(static_cast<unsigned char>(text[0])) == 0;
    return is_number && value >= least && value <= most ? std::string() : found_expected(text, expected);
  };
  return {"X", CLI::Validator(check, "")};
}

FlagValue share() { return number(0, 1, "a number from 0 to 1"); }
FlagValue top_p_value() { return number(std::numeric_limits<double>::min(), 1, "a number over 0, to 1"); }
FlagValue seconds() {
  FlagValue value = number(0.001, kMostSeconds, "seconds from 0.001 to 1e9");
  value.shown = "SECONDS";
  return value;
}
FlagValue seconds_or_none() {
  FlagValue value = number(0, kMostSeconds, "seconds from 0 to 1e9");
  value.shown = "SECONDS";
  return value;
}

FlagValue byte_size(std::int64_t least, bool decimal) {
  const std::string expected = "bytes such as 512, 16MB or 2GiB, at least " + std::to_string(least);
  const auto transform = [=](std::string& text) -> std::string {
    const char* end = text.data() + text.size();
    std::int64_t value = 0;
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || value < 0) return found_expected(text, expected);
    std::string suffix(rest, end);
    for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (suffix.ends_with('b')) suffix.pop_back();
    const bool binary = suffix.ends_with('i') || !decimal;
    if (suffix.ends_with('i')) suffix.pop_back();
    const std::size_t power = suffix.empty() ? 0 : std::string_view("kmgtp").find(suffix) + 1;
    if (suffix.size() > 1 || (!suffix.empty() && power == 0)) return found_expected(text, expected);
    for (std::size_t i = 0; i < power; ++i) {
      if (__builtin_mul_overflow(value, std::int64_t{binary ? 1024 : 1000}, &value)) {
        return found_expected(text, "less than 8 EiB");
      }
    }
    if (value < least) return found_expected(text, expected);
    text = std::to_string(value);
    return {};
  };
  return {"BYTES", CLI::Validator(transform, "")};
}

FlagValue one_of(const std::vector<std::string>& names) {
  std::string shown, expected;
  for (std::size_t i = 0; i < names.size(); ++i) {
    shown += (i > 0 ? "|" : "") + names[i];
    expected += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + names[i];
  }
  const auto check = [names, expected](std::string& text) {
    const bool known = std::find(names.begin(), names.end(), text) != names.end();
    return known ? std::string() : found_expected(text, expected);
  };
  return {shown, CLI::Validator(check, "")};
}

FlagValue on_off() {
  const auto transform = [](std::string& text) -> std::string {
    if (text != "on" && text != "off") return found_expected(text, "on or off");
    text = text == "on" ? "true" : "false";
    return {};
  };
  return {"on|off", CLI::Validator(transform, "")};
}

FlagValue path() { return not_empty("PATH", "a path"); }
FlagValue text_value() { return not_empty("TEXT", "one that is not empty"); }
FlagValue any_text() {
  return {"TEXT", CLI::Validator([](std::string&) { return std::string(); }, "")};
}

CLI::Option* add_repeated(CLI::App& command, const std::string& name, std::vector<std::string>& target,
                          const std::string& help, const FlagValue& value) {
  return add_value(command, name, target, help + "; may be repeated", value)->allow_extra_args(false);
}

std::string shown_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

void add_model_flags(CLI::App& command, ModelFlags& flags) {
  add_value(command, "--model", flags.model, "Model directory (default models/mini-v4)", path());
  add_value(command, "--numerics", flags.numerics,
            with_default("How numbers are rounded between operations", flags.numerics),
            one_of({"plain", "vendor", "serve"}));
  add_value(command, "--device", flags.device,
            with_default("Where it runs; auto takes a GPU where there is one, emulated is the device side without one, "
                         "for tests",
                         flags.device),
            one_of({"auto", "cpu", "cuda", "emulated"}));
  command.parse_complete_callback([&flags] { flags.device = chosen_device(flags); });
  add_value(command, "--threads", flags.threads, "CPU threads (default: all available)", whole_number(1, 1024));
  add_repeated(command, "--variant", flags.variants, "operation=name, or *=name (default: the fastest right ones)",
               any_text());
  add_value(command, "--max-context", flags.max_context, "Tokens of context (default: what the model takes)",
            positive());
}

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
  add_value(command, "--temperature", flags.temperature, "0 is greedy (default: generation_config.json)",
            number(0, 100, "a number from 0 to 100"));
  add_value(command, "--top-p", flags.top_p, "Nucleus sampling (default: generation_config.json)", top_p_value());
  add_value(command, "--top-k", flags.top_k,
            with_default("Most likely tokens that are drawn from; 0: all", flags.top_k), whole_number(-1, kMost32));
  add_value(command, "--min-p", flags.min_p,
            with_default("Share of the likeliest token's probability; 0: off", flags.min_p), share());
  add_value(command, "--seed", flags.seed, "Same seed, same text (default: drawn anew)", seed_value());
  add_value(command, "--max-tokens", flags.max_tokens, "Longest answer (default: until the context is full)",
            positive());
  add_repeated(command, "--stop", flags.stops, "The answer ends before this text (default: none)", any_text());
}

void add_thinking_flags(CLI::App& command, bool& thinking, std::string& effort) {
  add_value(command, "--thinking", thinking, with_default("Reasoning before the answer", thinking), on_off());
  add_value(command, "--effort", effort, "Reasoning effort (default: no prefix)", one_of({"low", "high", "max"}));
}

void add_draft_flag(CLI::App& command, const std::string& name, std::string& draft) {
  add_value(command, name, draft,
            with_default("Tokens that the checkpoint's own draft head proposes a step: off, 1 to 8, or adaptive; the "
                         "text is the same",
                         draft),
            any_text());
}

}  // namespace fathom::app
