#include "checkpoint/catalog.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

namespace fathom {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kExtension = ".safetensors";
constexpr std::int64_t kMaxIndexBytes = 256 << 20;

// "model-00003-of-00046.safetensors" -> 46, its place in a set; nothing for other names.
struct ShardNumber {
  std::string stem;  // "model"
  int number = 0;
  int count = 0;
};
std::optional<ShardNumber> parse_shard_number(const std::string& file_name) {
  constexpr std::size_t kTail = sizeof("-00001-of-00046.safetensors") - 1;
  if (file_name.size() < kTail) return std::nullopt;
  const std::size_t start = file_name.size() - kTail;
  ShardNumber result;
  int consumed = 0;
  if (std::sscanf(file_name.c_str() + start, "-%5d-of-%5d.safetensors%n", &result.number, &result.count, &consumed) !=
          2 ||
      consumed != static_cast<int>(kTail) || result.number < 1 || result.count < 1) {
    return std::nullopt;
  }
  result.stem = file_name.substr(0, start);
  return result;
}

const char* kind_of(fs::file_type type) {
  switch (type) {
    case fs::file_type::regular: return "file of another name";
    case fs::file_type::character:
    case fs::file_type::block: return "device";
    case fs::file_type::fifo: return "pipe";
    case fs::file_type::socket: return "socket";
    default: return "special file";
  }
}

std::string shard_name(const std::string& stem, int number, int count) {
  char tail[64];
  std::snprintf(tail, sizeof tail, "-%05d-of-%05d.safetensors", number, count);
  return stem + tail;
}

}  // namespace

// Collects shards and findings, then settles which copy of each tensor counts.
class CatalogBuilder {
 public:
  explicit CatalogBuilder(std::string path) { catalog_.path_ = std::move(path); }

  Result<TensorCatalog> build() {
    std::error_code error;
    const fs::file_status status = fs::status(catalog_.path_, error);
    if (error || !fs::exists(status)) {
      const std::string reason = error ? error.message() : "No such file or directory";
      const std::string message = "cannot open model " + (catalog_.path_.empty() ? "\"\"" : catalog_.path_) + ": " +
                                  reason + "; expected a directory with config.json and .safetensors files";
      return error == std::errc::permission_denied ? io_error(message) : not_found(message);
    }
    if (fs::is_directory(status)) {
      catalog_.directory_ = catalog_.path_;
      FATHOM_RETURN_IF_ERROR(open_directory());
    } else if (!fs::is_regular_file(status) || !catalog_.path_.ends_with(kExtension)) {
      return invalid_argument("cannot open model " + catalog_.path_ + ": found a " + kind_of(status.type()) +
                              ", expected a model directory or one .safetensors file");
    } else {
      const fs::path file(catalog_.path_);
      catalog_.directory_ = file.has_parent_path() ? file.parent_path().string() : ".";
      open_shard(file.filename().string());
    }
    settle();
    return std::move(catalog_);
  }

 private:
  void add_finding(Severity severity, std::string kind, std::string name, std::string found, std::string expected) {
    catalog_.findings_.push_back({severity, std::move(kind), std::move(name), std::move(found), std::move(expected)});
  }

  std::string path_of(const std::string& file_name) const {
    return (fs::path(catalog_.directory_) / file_name).string();
  }

  Status open_directory() {
    std::error_code error;
    std::set<std::string> on_disk;
    bool other_format = false;
    for (fs::directory_iterator it(catalog_.directory_, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name.ends_with(kExtension)) on_disk.insert(name);
      other_format = other_format || name.ends_with(".gguf") || name.ends_with(".bin");
    }
    if (error) return io_error("cannot read directory " + catalog_.directory_ + ": " + error.message());
    read_index();
    if (!catalog_.has_index_ && on_disk.empty()) {
      return not_found("model directory " + catalog_.directory_ + ": found no .safetensors file" +
                       (other_format ? " (only other formats, which are not read)" : "") + ", expected " +
                       std::string(kIndexName) + " with its shards or model.safetensors");
    }
    if (catalog_.has_index_) {
      open_indexed(on_disk);
    } else {
      open_unindexed(on_disk);
    }
    return {};
  }

  void read_index() {
    const std::string path = path_of(std::string(kIndexName));
    std::error_code error;
    if (!fs::exists(fs::symlink_status(path, error))) return;
    Result<std::string> text = read_text_file(path, kMaxIndexBytes);
    if (!text.ok()) {
      return add_finding(Severity::kError, "index", std::string(kIndexName), text.status().message(),
                         "a readable index of the shards");
    }
    Result<ShardIndex> index = parse_shard_index(*text);
    if (!index.ok()) {
      return add_finding(Severity::kError, "index", std::string(kIndexName), index.status().message(),
                         "a JSON object with \"weight_map\": {tensor name: file name}");
    }
    index_ = std::move(*index);
    catalog_.has_index_ = true;
  }

  void open_indexed(const std::set<std::string>& on_disk) {
    std::map<std::string, std::int64_t> tensors_of_file;
    for (const auto& [name, file] : index_.weight_map) ++tensors_of_file[file];
    for (const auto& [file, count] : tensors_of_file) {
      if (!open_shard(file)) lose_tensors_of(file);
    }
    for (const std::string& file : on_disk) {
      if (tensors_of_file.contains(file)) continue;
      add_finding(Severity::kWarning, "stray-shard", file, "a shard that the index does not name; it is not read",
                  "only the " + std::to_string(tensors_of_file.size()) + " shards of " + std::string(kIndexName));
    }
  }

  void lose_tensors_of(const std::string& file) {
    for (const auto& [name, place] : index_.weight_map) {
      if (place == file) catalog_.lost_.insert(name);
    }
  }

  void open_unindexed(const std::set<std::string>& on_disk) {
    if (on_disk.size() > 1 && catalog_.findings_.empty()) {
      add_finding(Severity::kWarning, "index", std::string(kIndexName),
                  "nothing; all " + std::to_string(on_disk.size()) + " shards of the directory are read",
                  "an index beside the shards");
    }
    std::map<std::pair<std::string, int>, std::set<int>> sets;
    for (const std::string& file : on_disk) {
      open_shard(file);
      if (const auto number = parse_shard_number(file)) sets[{number->stem, number->count}].insert(number->number);
    }
    for (const auto& [set, numbers] : sets) {
      for (int number = 1; number <= set.second; ++number) {
        if (numbers.contains(number)) continue;
        add_finding(Severity::kError, "missing-shard", shard_name(set.first, number, set.second), "nothing",
                    "every shard of the set of " + std::to_string(set.second));
      }
    }
  }

  // False when nothing of the file can be used; says why in a finding.
  bool open_shard(const std::string& file_name) {
    const std::string path = path_of(file_name);
    Result<std::shared_ptr<const MappedFile>> file = open_mapped_file(path);
    if (!file.ok()) {
      report_unopened(file_name, path, file.status());
      return false;
    }
    const std::span<const std::byte> bytes = (*file)->bytes();
    Result<SafetensorsHeader> header =
        parse_safetensors_header(bytes, static_cast<std::int64_t>(bytes.size()), file_name);
    if (!header.ok()) {
      std::string found = header.status().message();
      // The message starts with the file name and "found"; the finding has fields for both.
      const std::string start = file_name + ": found ";
      if (found.starts_with(start)) found = found.substr(start.size());
      std::string expected;
      if (const std::size_t split = found.find(", expected "); split != std::string::npos) {
        expected = found.substr(split + sizeof(", expected ") - 1);
        found.resize(split);
      }
      add_finding(Severity::kError, is_lfs_pointer(bytes) ? "lfs-pointer" : "header", file_name, found, expected);
      return false;
    }
    take_header(file_name, std::move(*file), std::move(*header));
    return true;
  }

  void report_unopened(const std::string& file_name, const std::string& path, const Status& status) {
    std::error_code error;
    std::string found = status.message();
    if (status.code() == StatusCode::kNotFound) {
      found = "nothing";
      if (fs::is_symlink(fs::symlink_status(path, error))) {
        found = "a symbolic link to " + fs::read_symlink(path, error).string() + ", which does not exist";
      }
    }
    add_finding(Severity::kError, status.code() == StatusCode::kNotFound ? "missing-shard" : "unreadable", file_name,
                found, "a readable safetensors file of the model directory");
  }

  void take_header(const std::string& file_name, std::shared_ptr<const MappedFile> file, SafetensorsHeader header) {
    const auto shard = static_cast<std::int32_t>(catalog_.shards_.size());
    std::int64_t num_cut = 0;
    for (HeaderProblem& problem : header.problems) {
      // Gaps and trailing bytes lose nothing; anything else makes the tensor unusable.
      const bool harmless = problem.kind == "gap";
      if (!harmless) catalog_.lost_.insert(std::string(canonical_tensor_name(problem.name)));
      if (problem.kind == "truncated") {
        if (num_cut++ > 0) continue;  // one finding a file
      }
      add_finding(harmless ? Severity::kWarning : Severity::kError, problem.kind,
                  problem.name.empty() ? file_name : problem.name + " in " + file_name, std::move(problem.found),
                  std::move(problem.expected));
    }
    if (num_cut > 1) {
      catalog_.findings_.back().found += " (" + std::to_string(num_cut) + " tensors are cut)";
    }
    for (HeaderTensor& tensor : header.tensors) {
      TensorInfo info;
      info.name = canonical_tensor_name(tensor.name);
      info.dtype = tensor.dtype;
      info.shape = tensor.shape;
      info.shard = shard;
      info.offset_bytes = header.data_offset_bytes + tensor.begin;
      info.num_bytes = tensor.end - tensor.begin;
      catalog_.tensors_.push_back(std::move(info));
    }
    catalog_.shards_.push_back({file_name, std::move(file), header.data_offset_bytes});
  }

  const std::string& shard_file(const TensorInfo& tensor) const {
    return catalog_.shards_[static_cast<std::size_t>(tensor.shard)].file_name;
  }

  // One entry per name: the index's choice, else the first. Equal copies are harmless, unequal ones are not.
  void settle() {
    std::vector<TensorInfo> all = std::move(catalog_.tensors_);
    catalog_.tensors_.clear();
    catalog_.tensors_.reserve(all.size());
    std::unordered_map<std::string_view, std::size_t> first;  // name -> position in `all`
    first.reserve(all.size());
    std::vector<bool> dropped(all.size(), false);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto [it, is_new] = first.emplace(all[i].name, i);
      if (is_new) continue;
      report_duplicate(all[it->second], all[i]);
      const auto place = index_.weight_map.find(all[i].name);
      const bool index_says_second = place != index_.weight_map.end() && place->second == shard_file(all[i]) &&
                                     place->second != shard_file(all[it->second]);
      if (index_says_second) {
        dropped[it->second] = true;
        first.erase(it);
        first.emplace(all[i].name, i);
      } else {
        dropped[i] = true;
      }
    }
    first.clear();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!dropped[i]) catalog_.tensors_.push_back(std::move(all[i]));
    }
    catalog_.by_name_.reserve(catalog_.tensors_.size());
    for (std::size_t i = 0; i < catalog_.tensors_.size(); ++i) {
      catalog_.by_name_.emplace(catalog_.tensors_[i].name, static_cast<std::int32_t>(i));
    }
    if (catalog_.has_index_) compare_with_index();
  }

  void report_duplicate(const TensorInfo& a, const TensorInfo& b) {
    if (a.shard == b.shard) return;  // the header check named it
    const bool same =
        a.dtype == b.dtype && a.shape == b.shape && a.num_bytes == b.num_bytes &&
        std::memcmp(catalog_.bytes(a).data(), catalog_.bytes(b).data(), static_cast<std::size_t>(a.num_bytes)) == 0;
    add_finding(same ? Severity::kWarning : Severity::kError, "duplicate", a.name,
                (same ? "equal copies in " : "different contents in ") + shard_file(a) + " and " + shard_file(b),
                "one copy");
  }

  void compare_with_index() {
    for (const auto& [name, file] : index_.weight_map) {
      const TensorInfo* tensor = catalog_.find(name);
      if (tensor != nullptr) {
        if (shard_file(*tensor) != file && !catalog_.is_lost(name)) {
          add_finding(Severity::kError, "index", name, "the tensor in " + shard_file(*tensor),
                      file + ", where the index places it");
        }
      } else if (!catalog_.is_lost(name)) {
        catalog_.lost_.insert(name);
        add_finding(Severity::kError, "missing", name, "nothing in " + file, "the tensor that the index places there");
      }
    }
    std::int64_t unlisted = 0;
    const TensorInfo* example = nullptr;
    for (const TensorInfo& tensor : catalog_.tensors_) {
      if (index_.weight_map.contains(tensor.name)) continue;
      if (unlisted++ == 0) example = &tensor;
    }
    if (unlisted > 0) {
      add_finding(Severity::kWarning, "index", example->name,
                  std::to_string(unlisted) + " tensor(s) in the shards that the index does not list",
                  "every tensor in the index");
    }
    if (index_.total_size && catalog_.lost_.empty() && *index_.total_size != catalog_.total_bytes()) {
      add_finding(Severity::kWarning, "index", "metadata.total_size", std::to_string(*index_.total_size),
                  std::to_string(catalog_.total_bytes()) + ", the sum of the tensors");
    }
  }

  TensorCatalog catalog_;
  ShardIndex index_;
};

std::int64_t TensorCatalog::total_bytes() const {
  std::int64_t total = 0;
  for (const TensorInfo& tensor : tensors_) total += tensor.num_bytes;
  return total;
}

const TensorInfo* TensorCatalog::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[static_cast<std::size_t>(it->second)];
}

Result<const TensorInfo*> TensorCatalog::require(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) {
    return not_found("tensor " + std::string(name) + " in " + path_ + ": found nothing, expected it among " +
                     std::to_string(tensors_.size()) + " tensors");
  }
  return tensor;
}

std::span<const std::byte> TensorCatalog::bytes(const TensorInfo& tensor) const {
  return shards_[static_cast<std::size_t>(tensor.shard)].file->bytes().subspan(
      static_cast<std::size_t>(tensor.offset_bytes), static_cast<std::size_t>(tensor.num_bytes));
}

View TensorCatalog::view(const TensorInfo& tensor) const {
  return make_view(const_cast<std::byte*>(bytes(tensor).data()), tensor.dtype, tensor.shape);
}

Status TensorCatalog::check_unchanged() const {
  for (const Shard& shard : shards_) FATHOM_RETURN_IF_ERROR(shard.file->check_unchanged());
  return {};
}

Result<TensorCatalog> open_catalog(const std::string& path) { return CatalogBuilder(path).build(); }

}  // namespace fathom
