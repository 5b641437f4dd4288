// The command line. Only main.cc and flags*.{h,cc} see its library; an add_* function declares one subcommand, whose
// callback runs it and leaves the exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "commands.h"

namespace fathom::app {

// What a flag takes: how --help shows it, and the check before the library converts: the library's own lets -1 into
// unsigned fields, caps what overflows and reads 010 as 8.
struct FlagValue {
  std::string shown;
  CLI::Validator check;
};

constexpr std::int64_t kMost32 = INT32_MAX;
constexpr std::int64_t kMost64 = INT64_MAX;

// Decimal, from `least` to `most`; `least` >= -1.
FlagValue whole_number(std::int64_t least, std::uint64_t most);
FlagValue positive();    // to kMost64
FlagValue positive32();  // to kMost32
FlagValue count32();     // from 0
FlagValue seed_value();
FlagValue number(double least, double most, const std::string& expected);
FlagValue share();  // 0 to 1
FlagValue top_p_value();
FlagValue seconds();
FlagValue seconds_or_none();  // 0 too
// 512, 4k, 16MB, 2GiB. With `decimal` k is 1000 and Ki 1024, else both are 1024.
FlagValue byte_size(std::int64_t least, bool decimal);
FlagValue one_of(const std::vector<std::string>& names);
FlagValue on_off();
// An unset shell variable must not mean "the default", "no key" or "every address": these are never empty.
FlagValue path();
FlagValue text_value();
FlagValue any_text();

template <typename T>
CLI::Option* add_value(CLI::App& command, const std::string& name, T& target, const std::string& help,
                       const FlagValue& value) {
  return command.add_option(name, target, help)->transform(value.check)->type_name(value.shown);
}
// May be given several times, one value each.
CLI::Option* add_repeated(CLI::App& command, const std::string& name, std::vector<std::string>& target,
                          const std::string& help, const FlagValue& value);

std::string shown_number(double value);
// The help text and what holds without the flag, as the options struct has it.
template <typename T>
std::string with_default(const std::string& help, const T& value) {
  std::string shown;
  if constexpr (std::is_same_v<T, bool>) {
    shown = value ? "on" : "off";
  } else if constexpr (std::is_floating_point_v<T>) {
    shown = shown_number(value);
  } else if constexpr (std::is_integral_v<T>) {
    shown = std::to_string(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    shown = value;
  } else {
    for (const auto& each : value) {
      if (!shown.empty()) shown += ' ';
      if constexpr (std::is_same_v<std::decay_t<decltype(each)>, std::string>) {
        shown += each;
      } else {
        shown += std::to_string(each);
      }
    }
  }
  return help + " (default " + shown + ")";
}

void add_model_flags(CLI::App& command, ModelFlags& flags);
void add_sampling_flags(CLI::App& command, SamplingFlags& flags);
void add_thinking_flags(CLI::App& command, bool& thinking, std::string& effort);
void add_draft_flag(CLI::App& command, const std::string& name, std::string& draft);

// flags_checkpoint.cc: texts and checkpoints, no model runs.
void add_tokenize(CLI::App& app, int& exit_code);
void add_render(CLI::App& app, int& exit_code);
void add_parse(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_synth(CLI::App& app, int& exit_code);
void add_convert(CLI::App& app, int& exit_code);
// flags_model.cc
void add_chat(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_logits(CLI::App& app, int& exit_code);
void add_selfcheck(CLI::App& app, int& exit_code);
void add_selftest(CLI::App& app, int& exit_code);
// flags_serve.cc
void add_serve(CLI::App& app, int& exit_code);
void add_replay(CLI::App& app, int& exit_code);
// flags_measure.cc: benchmarks and profiles.
void add_bench(CLI::App& app, int& exit_code);
void add_profile(CLI::App& app, int& exit_code);
void add_compare(CLI::App& app, int& exit_code);
void add_findings(CLI::App& app, int& exit_code);

}  // namespace fathom::app
