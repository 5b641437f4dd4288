#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/safetensors.h"

namespace fathom {
namespace {

constexpr std::string_view kLfsMark = "version https://git-lfs.github.com/spec/";

// Fields of one tensor as they stand in the JSON, before any check.
struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> offsets;
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
};

// Receives the header's events: {"name": {"dtype": s, "shape": [..], "data_offsets": [..]}, "__metadata__": {..}}.
// Any other structure stops the parse with a reason.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<RawTensor> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::string reason;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return number(value, "a negative number"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) return stop("a number over 63 bits");
    return number(static_cast<std::int64_t>(value), "");
  }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a fraction"); }
  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      metadata.emplace_back(std::move(key_), std::move(value));
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return unexpected("a string");
    tensors.back().dtype = std::move(value);
    tensors.back().has_dtype = true;
    return true;
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool start_object(std::size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return unexpected("an object");
    if (key_ == "__metadata__") {
      place_ = Place::kMetadata;
      return true;
    }
    place_ = Place::kTensor;
    tensors.emplace_back();
    tensors.back().name = std::move(key_);
    return true;
  }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kOutside;
      return true;
    }
    if (place_ == Place::kTensor) {
      const RawTensor& tensor = tensors.back();
      if (!tensor.has_dtype || !tensor.has_shape || !tensor.has_offsets) {
        return stop("no dtype, shape or data_offsets");
      }
    }
    place_ = Place::kTop;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor) return unexpected("a list");
    if (key_ == "shape") {
      list_ = &tensors.back().shape;
      tensors.back().has_shape = true;
    } else if (key_ == "data_offsets") {
      list_ = &tensors.back().offsets;
      tensors.back().has_offsets = true;
    } else {
      return unexpected("a list");
    }
    list_->clear();
    place_ = Place::kList;
    return true;
  }
  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return stop("invalid JSON at header byte " + std::to_string(position));
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kTensor, kList };

  bool number(std::int64_t value, const char* problem) {
    if (place_ != Place::kList) return unexpected("a number");
    if (value < 0) return stop(problem);
    constexpr std::size_t kLongestList = 64;
    if (list_->size() >= kLongestList) return stop("a list of more than 64 numbers");
    list_->push_back(value);
    return true;
  }
  bool unexpected(const char* what) { return stop("unexpected " + std::string(what)); }
  bool stop(const std::string& text) {
    if (!reason.empty()) return false;
    reason = text;
    if (place_ == Place::kTensor || place_ == Place::kList) reason += " in tensor \"" + tensors.back().name + "\"";
    return false;
  }

  Place place_ = Place::kOutside;
  std::string key_;
  std::vector<std::int64_t>* list_ = nullptr;
};

std::string list_text(const std::vector<std::int64_t>& values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text + "]";
}

// Turns raw fields into a usable tensor, or names why not.
class TensorChecker {
 public:
  TensorChecker(std::int64_t available_bytes, std::vector<HeaderProblem>& problems)
      : available_bytes_(available_bytes), problems_(problems) {}

  bool check(RawTensor& raw, HeaderTensor& tensor) {
    const auto dtype = parse_dtype(raw.dtype);
    if (!dtype) {
      return refuse("dtype", raw, "dtype \"" + raw.dtype + "\"",
                    "a dtype of this format version (BF16, F32, F8_E4M3, F8_E8M0, I8, U8, I64, ...); FP4 is stored "
                    "packed, two values a byte, as I8 or U8");
    }
    if (raw.shape.size() > Shape::kMaxRank) {
      return refuse("shape", raw, "shape " + list_text(raw.shape), "at most 4 dimensions");
    }
    std::int64_t num_bytes = dtype_bytes(*dtype);
    for (const std::int64_t dim : raw.shape) {
      if (__builtin_mul_overflow(num_bytes, dim, &num_bytes)) {
        return refuse("shape", raw, "shape " + list_text(raw.shape), "a byte count below 2^63");
      }
      tensor.shape.append(dim);
    }
    if (raw.offsets.size() != 2 || raw.offsets[0] > raw.offsets[1]) {
      return refuse("extent", raw, "data_offsets " + list_text(raw.offsets), "[begin, end] with begin <= end");
    }
    if (raw.offsets[1] - raw.offsets[0] != num_bytes) {
      return refuse("extent", raw, std::to_string(raw.offsets[1] - raw.offsets[0]) + " bytes",
                    std::to_string(num_bytes) + " bytes for " + describe_tensor(*dtype, tensor.shape));
    }
    if (raw.offsets[1] > available_bytes_) {
      return refuse("truncated", raw, "a file that ends at data byte " + std::to_string(available_bytes_),
                    "data up to byte " + std::to_string(raw.offsets[1]));
    }
    tensor.name = std::move(raw.name);
    tensor.dtype = *dtype;
    tensor.begin = raw.offsets[0];
    tensor.end = raw.offsets[1];
    return true;
  }

 private:
  bool refuse(const char* kind, const RawTensor& raw, std::string found, std::string expected) {
    problems_.push_back({kind, raw.name, std::move(found), std::move(expected)});
    return false;
  }

  std::int64_t available_bytes_;
  std::vector<HeaderProblem>& problems_;
};

// Tensors should tile the data exactly.
void find_overlaps_and_gaps(SafetensorsHeader& header, std::int64_t available_bytes) {
  const HeaderTensor* previous = nullptr;
  std::int64_t covered = 0;
  std::int64_t gaps = 0;
  for (const HeaderTensor& tensor : header.tensors) {
    if (tensor.begin == tensor.end) continue;
    if (previous != nullptr && tensor.begin < covered) {
      header.problems.push_back({"overlap", tensor.name,
                                 "bytes from " + std::to_string(tensor.begin) + ", inside " + previous->name,
                                 "bytes of its own from " + std::to_string(covered)});
    }
    if (tensor.begin > covered) gaps += tensor.begin - covered;
    if (tensor.end > covered) {
      previous = &tensor;
      covered = tensor.end;
    }
  }
  if (available_bytes > covered) gaps += available_bytes - covered;
  if (gaps > 0 && header.problems.empty()) {
    header.problems.push_back({"gap", "", std::to_string(gaps) + " data bytes that belong to no tensor",
                               "tensors that cover the whole file"});
  }
}

void find_duplicate_names(SafetensorsHeader& header) {
  std::vector<const HeaderTensor*> by_name;
  by_name.reserve(header.tensors.size());
  for (const HeaderTensor& tensor : header.tensors) by_name.push_back(&tensor);
  std::sort(by_name.begin(), by_name.end(),
            [](const HeaderTensor* a, const HeaderTensor* b) { return a->name < b->name; });
  for (std::size_t i = 1; i < by_name.size(); ++i) {
    if (by_name[i]->name == by_name[i - 1]->name) {
      header.problems.push_back({"duplicate", by_name[i]->name, "the name twice in one header", "once"});
    }
  }
}

}  // namespace

std::string describe_tensor(DType dtype, const Shape& shape) {
  return std::string(dtype_name(dtype)) + " " + shape.to_string();
}

bool is_lfs_pointer(std::span<const std::byte> file) {
  return file.size() >= kLfsMark.size() && std::memcmp(file.data(), kLfsMark.data(), kLfsMark.size()) == 0;
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file, std::int64_t file_bytes,
                                                   const std::string& origin) {
  if (is_lfs_pointer(file)) {
    return data_loss(origin + ": found a Git LFS pointer (" + std::to_string(file_bytes) +
                     " bytes of text), expected the safetensors file itself: fetch it with `git lfs pull`");
  }
  if (static_cast<std::int64_t>(file.size()) < kSafetensorsLengthBytes) {
    return data_loss(origin + ": found " + std::to_string(file_bytes) +
                     " bytes, expected a safetensors file (at least an 8-byte header length)");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const auto after_length = static_cast<std::int64_t>(file.size()) - kSafetensorsLengthBytes;
  if (length > static_cast<std::uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return data_loss(origin + ": found a header length of " + std::to_string(length) + " bytes, expected at most " +
                     std::to_string(kMaxSafetensorsHeaderBytes) + " (is this a safetensors file?)");
  }
  if (length > static_cast<std::uint64_t>(after_length)) {
    return data_loss(origin + ": found a header length of " + std::to_string(length) + " bytes in a file of " +
                     std::to_string(file_bytes) + ", expected the header to end inside the file (truncated?)");
  }
  const char* text = reinterpret_cast<const char*>(file.data()) + kSafetensorsLengthBytes;
  HeaderEvents events;
  const bool parsed = nlohmann::json::sax_parse(text, text + length, &events);
  if (!parsed || !events.reason.empty()) {
    return data_loss(origin + ": found a header with " + (events.reason.empty() ? "invalid JSON" : events.reason) +
                     ", expected one JSON object of tensors with dtype, shape and data_offsets");
  }
  SafetensorsHeader header;
  header.data_offset_bytes = kSafetensorsLengthBytes + static_cast<std::int64_t>(length);
  header.metadata = std::move(events.metadata);
  header.tensors.reserve(events.tensors.size());
  TensorChecker checker(file_bytes - header.data_offset_bytes, header.problems);
  for (RawTensor& raw : events.tensors) {
    HeaderTensor tensor;
    if (checker.check(raw, tensor)) header.tensors.push_back(std::move(tensor));
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  find_overlaps_and_gaps(header, file_bytes - header.data_offset_bytes);
  find_duplicate_names(header);
  return header;
}

}  // namespace fathom
