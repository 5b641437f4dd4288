#include "engine/variant_choice.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace fathom {
namespace {

struct Section {
  std::string key;
  VariantChoices choices;
};

Result<std::vector<Section>> read_sections(const std::string& path) {
  std::vector<Section> sections;
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line.front() == '#') continue;
    if (line.front() == '[' && line.back() == ']') {
      sections.push_back({line.substr(1, line.size() - 2), {}});
      continue;
    }
    const std::size_t equals = line.find(" = ");
    if (equals == std::string::npos || equals == 0 || sections.empty()) {
      return failed_precondition(path + ":" + std::to_string(number) + ": found \"" + line +
                                 "\", expected [card] or \"operation = variant\"; remove the file, or run fathom "
                                 "selftest again");
    }
    sections.back().choices.emplace_back(line.substr(0, equals), line.substr(equals + 3));
  }
  return sections;
}

}  // namespace

std::string variant_choices_path() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return std::string(cache) + "/fathom/variants";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return std::string(home) + "/.cache/fathom/variants";
  }
  return {};
}

Result<VariantChoices> read_variant_choices(const std::string& path, std::string_view key) {
  FATHOM_ASSIGN_OR_RETURN(const std::vector<Section> sections, read_sections(path));
  for (const Section& section : sections) {
    if (section.key == key) return section.choices;
  }
  return VariantChoices();
}

Status write_variant_choices(const std::string& path, std::string_view key, const VariantChoices& choices) {
  std::vector<Section> sections;
  // A file that cannot be read is written anew.
  if (Result<std::vector<Section>> old = read_sections(path); old.ok()) sections = std::move(*old);
  bool found = false;
  for (Section& section : sections) {
    if (section.key != key) continue;
    section.choices = choices;
    found = true;
  }
  if (!found) sections.push_back({std::string(key), choices});
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::string draft = path + ".new";
  {
    std::ofstream file(draft, std::ios::trunc);
    file << "# Written by fathom selftest: the variants that run by default.\n";
    for (const Section& section : sections) {
      file << "[" << section.key << "]\n";
      for (const auto& [operation, variant] : section.choices) file << operation << " = " << variant << "\n";
    }
    file.flush();
    if (!file) return io_error("cannot write " + draft + ": the choice of variants is not remembered");
  }
  std::filesystem::rename(draft, path, error);
  if (error) return io_error("cannot rename " + draft + ": " + error.message());
  return {};
}

}  // namespace fathom
