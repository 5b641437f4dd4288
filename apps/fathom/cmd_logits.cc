// Logits (and taps) of given token ids as safetensors: what people attach to bug reports.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "commands.h"
#include "opened_model.h"
#include "progress_bar.h"
#include "standard_streams.h"
#include "tensor/scalar_formats.h"

namespace fathom::app {
namespace {

using IdLists = std::vector<std::vector<TokenId>>;

Result<IdLists> read_id_lists(const std::string& path, std::int64_t vocab_size) {
  FATHOM_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_array())
    return invalid_argument(path + ": expected JSON [[id, ...], ...], a list of lists of token ids");
  // One list alone.
  if (!json.empty() && !json[0].is_array()) {
    nlohmann::json one = std::move(json);
    json = nlohmann::json::array();
    json.push_back(std::move(one));
  }
  IdLists lists;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const std::string where = path + ": list " + std::to_string(i);
    if (!json[i].is_array()) return invalid_argument(where + ": found no list, expected a list of token ids");
    if (json[i].empty()) return invalid_argument(where + ": found no ids, expected at least one");
    std::vector<TokenId>& ids = lists.emplace_back();
    for (std::size_t k = 0; k < json[i].size(); ++k) {
      const nlohmann::json& id = json[i][k];
      const bool in_range = id.is_number_integer() && id >= 0 && id < vocab_size;
      if (!in_range) {
        return invalid_argument(where + ", index " + std::to_string(k) + ": found " + id.dump() +
                                ", expected a token id, 0 to " + std::to_string(vocab_size - 1));
      }
      ids.push_back(id.get<TokenId>());
    }
  }
  if (lists.empty()) return invalid_argument(path + ": found no lists, expected at least one");
  return lists;
}

// Ascending positions of a list of `length` ids.
Result<std::vector<std::int32_t>> parse_positions(const std::string& text, std::int64_t length) {
  std::vector<std::int32_t> positions;
  if (text == "last") return std::vector<std::int32_t>{static_cast<std::int32_t>(length - 1)};
  if (text == "all") {
    for (std::int64_t p = 0; p < length; ++p) positions.push_back(static_cast<std::int32_t>(p));
    return positions;
  }
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::int32_t position = -1;
    const auto [rest, error] = std::from_chars(text.data() + begin, text.data() + end, position);
    if (error != std::errc() || rest != text.data() + end) {
      return invalid_argument("--positions: found \"" + text + "\", expected last, all, or numbers such as 0,5,7");
    }
    if (position < 0 || position >= length) {
      return invalid_argument("--positions: found " + std::to_string(position) + ", a list of " +
                              std::to_string(length) + " ids has positions 0 to " + std::to_string(length - 1));
    }
    positions.push_back(position);
    begin = end + 1;
  }
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

// Keeps every tap of one list; later rows after earlier ones.
class TapFile final : public TapSink {
 public:
  void begin_list(std::size_t index) { prefix_ = std::to_string(index) + "."; }
  bool wants(std::string_view /*name*/) override { return true; }
  void write(std::string_view name, View value) override {
    Entry& entry = entries_[prefix_ + std::string(name)];
    const std::int64_t before = entry.shape.rank() == 0 ? 0 : entry.shape[0];
    entry.dtype = value.dtype;
    Shape shape{before + value.shape[0]};
    for (int i = 1; i < value.shape.rank(); ++i) shape.append(value.shape[i]);
    entry.shape = shape;
    entry.bytes.insert(entry.bytes.end(), value.data, value.data + value.num_bytes());
  }
  Status save(const std::string& path) const {
    std::vector<NamedTensor> tensors;
    for (const auto& [name, entry] : entries_) tensors.push_back({name, entry.dtype, entry.shape, entry.bytes});
    return write_safetensors(path, tensors);
  }

 private:
  struct Entry {
    DType dtype = DType::kF32;
    Shape shape;
    std::vector<std::byte> bytes;
  };
  std::string prefix_;
  std::map<std::string, Entry> entries_;
};

template <typename T>
std::span<const std::byte> bytes_of(std::span<const T> values) {
  return std::as_bytes(values);
}

Status logits(const LogitsOptions& options) {
  constexpr std::int64_t kLogitRows = 64;
  std::error_code unreadable;
  const auto out = std::filesystem::weakly_canonical(options.out, unreadable);  // empty where it has no answer
  if (!options.taps.empty() && !out.empty() && out == std::filesystem::weakly_canonical(options.taps, unreadable)) {
    return invalid_argument("--out and --dump-taps: found " + options.out + " for both, expected two files");
  }
  FATHOM_ASSIGN_OR_RETURN(OpenedModel opened, open_model(options.model, false, kLogitRows));
  const std::int64_t vocab = opened.loaded.model->config().vocab_size;
  FATHOM_ASSIGN_OR_RETURN(const IdLists lists, read_id_lists(options.ids, vocab));
  std::vector<std::vector<std::int32_t>> positions;
  std::vector<TensorToWrite> tensors;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const auto length = static_cast<std::int64_t>(lists[i].size());
    if (length > opened.session->max_context_tokens()) {
      return invalid_argument(options.ids + ": list " + std::to_string(i) + " has " + std::to_string(length) +
                              " ids, the context holds " + std::to_string(opened.session->max_context_tokens()));
    }
    FATHOM_ASSIGN_OR_RETURN(std::vector<std::int32_t> wanted, parse_positions(options.positions, length));
    const auto rows = static_cast<std::int64_t>(wanted.size());
    tensors.push_back({"positions." + std::to_string(i), DType::kI32, {rows}});
    tensors.push_back({"logits." + std::to_string(i), DType::kF32, {rows, vocab}});
    positions.push_back(std::move(wanted));
    total += length;
  }
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                          SafetensorsWriter::open(options.out, std::move(tensors)));
  TapFile taps;
  if (!options.taps.empty()) opened.session->executor().context().taps = &taps;
  ProgressBar bar("computing");
  std::int64_t done_before = 0;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    taps.begin_list(i);
    const std::span<const std::int32_t> wanted = positions[i];
    FATHOM_RETURN_IF_ERROR(writer->append(bytes_of(wanted)));
    std::size_t next = 0;
    Status written;
    FATHOM_RETURN_IF_ERROR(opened.session->score(
        lists[i], wanted.front(),
        [&](std::int64_t position, std::span<const float> row) {
          if (next == wanted.size() || position != wanted[next] || !written.ok()) return;
          written = writer->append(bytes_of(row));
          ++next;
        },
        [&](std::int64_t done, std::int64_t /*total*/) {
          bar.update(done_before + done, total);
          return true;
        }));
    FATHOM_RETURN_IF_ERROR(written);
    done_before += static_cast<std::int64_t>(lists[i].size());
  }
  if (!options.taps.empty()) FATHOM_RETURN_IF_ERROR(taps.save(options.taps));
  return writer->finish();
}

}  // namespace

int run_logits(const LogitsOptions& options) {
  const Status status = logits(options);
  return status.ok() ? 0 : report_failure("logits", status);
}

}  // namespace fathom::app
