// Every tensor of a checkpoint by name, and where its bytes lie: safetensors shards mapped read-only.
//
// Opening reads headers and the index only. Names are the vendor's (spec section 5); one leading
// "model." is dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "checkpoint/finding.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace fathom {

struct TensorInfo {
  std::string name;  // without a leading "model."
  DType dtype = DType::kF32;
  Shape shape;
  std::int32_t shard = 0;         // index into TensorCatalog::shards()
  std::int64_t offset_bytes = 0;  // from the start of the file; need not be a multiple of the element size
  std::int64_t num_bytes = 0;
};

struct Shard {
  std::string file_name;  // relative to the model directory
  std::shared_ptr<const MappedFile> file;
  std::int64_t data_offset_bytes = 0;  // where tensor data starts
};

class TensorCatalog {
 public:
  TensorCatalog() = default;
  // The index refers into tensors_: moving keeps it valid, copying would not.
  TensorCatalog(TensorCatalog&&) noexcept = default;
  TensorCatalog& operator=(TensorCatalog&&) noexcept = default;
  TensorCatalog(const TensorCatalog&) = delete;
  TensorCatalog& operator=(const TensorCatalog&) = delete;

  const std::vector<Shard>& shards() const { return shards_; }
  // Sorted by (shard, offset).
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::int64_t total_bytes() const;

  const TensorInfo* find(std::string_view name) const;  // nullptr when absent
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  // As find, with a NotFound that names the tensor and the checkpoint.
  Result<const TensorInfo*> require(std::string_view name) const;

  // Zero-copy: the bytes in the mapping. They may lie at odd addresses: read with memcpy, never through a
  // cast pointer. Valid while the catalog (or a copy of its shards' `file`) lives.
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;
  View view(const TensorInfo& tensor) const;

  // What opening found wrong, for verify: unreadable or missing shards, LFS pointers, extents outside the
  // file, overlaps, unknown dtypes, tensors in two shards, stray shards.
  const std::vector<Finding>& findings() const { return findings_; }
  // Tensors the index or a header announces but a finding already says are not usable (their shard is
  // missing, their dtype unknown, ...): no need to report them again as missing.
  bool is_lost(std::string_view name) const { return lost_.contains(std::string(name)); }

  const std::string& path() const { return path_; }            // as given to open_catalog
  const std::string& directory() const { return directory_; }  // where config.json and tokenizer.json lie
  bool has_index() const { return has_index_; }

  // Fails when a shard changed on disk since it was opened.
  Status check_unchanged() const;

 private:
  friend class CatalogBuilder;
  std::string path_;
  std::string directory_;
  bool has_index_ = false;
  std::vector<Shard> shards_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::int32_t> by_name_;
  std::vector<Finding> findings_;
  std::unordered_set<std::string> lost_;
};

// `path` is a directory (model.safetensors.index.json + shards, model.safetensors, or shards without an
// index) or one .safetensors file. Fails only when there is nothing to look at; everything else becomes a
// finding, so that one report names all of it.
Result<TensorCatalog> open_catalog(const std::string& path);

}  // namespace fathom
