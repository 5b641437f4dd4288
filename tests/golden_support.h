// Reading goldens, running a model beside them, comparing.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/catalog.h"
#include "engine/load_model.h"
#include "engine/session.h"
#include "telemetry/taps.h"

namespace fathom::testing {

inline std::string source_path(const std::string& relative) { return std::string(FATHOM_SOURCE_DIR) + "/" + relative; }

// A path inside ../shared, empty when it is absent.
inline std::string shared_path(const std::string& relative) {
  const char* root = std::getenv("FATHOM_SHARED");
  const std::string path = (root != nullptr ? std::string(root) : source_path("../shared")) + "/" + relative;
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? path : std::string();
}

#define FATHOM_SHARED_OR_SKIP(path, relative)                        \
  const std::string path = ::fathom::testing::shared_path(relative); \
  if (path.empty()) GTEST_SKIP() << "../shared is absent: cannot read " << (relative)

class Goldens {
 public:
  explicit Goldens(const std::string& path) : catalog_(open(path)) {}

  bool has(const std::string& name) const { return catalog_.contains(name); }
  std::vector<float> floats(const std::string& name) const { return read<float>(name, DType::kF32); }
  std::vector<std::int32_t> ints(const std::string& name) const { return read<std::int32_t>(name, DType::kI32); }
  std::vector<std::uint16_t> bf16(const std::string& name) const { return read<std::uint16_t>(name, DType::kBF16); }
  // NAME of every NAME.ids.
  std::vector<std::string> prompts() const {
    std::vector<std::string> names;
    for (const TensorInfo& tensor : catalog_.tensors()) {
      if (tensor.name.ends_with(".ids")) names.push_back(tensor.name.substr(0, tensor.name.size() - 4));
    }
    return names;
  }

 private:
  static TensorCatalog open(const std::string& path) {
    Result<TensorCatalog> catalog = open_catalog(path);
    EXPECT_TRUE(catalog.ok()) << catalog.status().message();
    return std::move(catalog).value();
  }
  template <typename T>
  std::vector<T> read(const std::string& name, DType dtype) const {
    const TensorInfo* tensor = catalog_.find(name);
    FATHOM_CHECK(tensor != nullptr, ("golden tensor " + name).c_str());
    FATHOM_CHECK(tensor->dtype == dtype, name.c_str());
    std::vector<T> values(static_cast<std::size_t>(tensor->shape.num_elements()));
    std::memcpy(values.data(), catalog_.bytes(*tensor).data(), values.size() * sizeof(T));
    return values;
  }
  TensorCatalog catalog_;
};

// ||a - b|| / ||b||
inline double relative_l2(std::span<const float> a, std::span<const float> b) {
  FATHOM_CHECK(a.size() == b.size() && !a.empty(), "vectors of one size");
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

inline std::int32_t argmax(std::span<const float> values) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] > values[best]) best = i;
  }
  return static_cast<std::int32_t>(best);
}

// Collects every tap, rows of later chunks after those of earlier ones.
class CollectingTaps final : public TapSink {
 public:
  struct Tap {
    std::int64_t row_elements = 0;
    std::vector<float> values;  // i32 taps too: entries are small integers
    std::span<const float> row(std::int64_t index) const {
      return std::span(values).subspan(static_cast<std::size_t>(index * row_elements),
                                       static_cast<std::size_t>(row_elements));
    }
    std::int64_t num_rows() const { return static_cast<std::int64_t>(values.size()) / row_elements; }
  };

  bool wants(std::string_view /*name*/) override { return true; }
  void write(std::string_view name, View value) override {
    Tap& tap = taps_[std::string(name)];
    tap.row_elements = value.shape.row_elements();
    for (std::int64_t i = 0; i < value.shape.num_elements(); ++i) {
      if (value.dtype == DType::kF32) {
        tap.values.push_back(value.as<float>()[i]);
      } else {
        tap.values.push_back(static_cast<float>(value.as<std::int32_t>()[i]));
      }
    }
  }
  const Tap& operator[](const std::string& name) const {
    const auto found = taps_.find(name);
    FATHOM_CHECK(found != taps_.end(), ("tap " + name).c_str());
    return found->second;
  }
  const std::map<std::string, Tap>& all() const { return taps_; }

 private:
  std::map<std::string, Tap> taps_;
};

using Overrides = std::vector<std::pair<std::string, std::string>>;
inline const Overrides kReference = {{"*", "reference"}};
inline const Overrides kCpu = {};

// A loaded model and one conversation with it.
class Runner {
 public:
  Runner(const std::string& model_path, const Numerics& numerics, const Overrides& variants,
         std::int64_t chunk_tokens = 512, int num_threads = 2)
      : loaded_(load(model_path, numerics, variants, chunk_tokens, num_threads)),
        session_(make_session(*loaded_.model, chunk_tokens)) {}

  Model& model() { return *loaded_.model; }
  Session& session() { return *session_; }
  std::int64_t vocab_size() const { return loaded_.model->config().vocab_size; }

  // Logits of positions [first, end), one after the other.
  std::vector<float> logits(std::span<const TokenId> ids, std::int64_t first, TapSink* taps = nullptr) {
    session_->executor().context().taps = taps;
    std::vector<float> all;
    const Status status = session_->score(
        ids, first, [&](std::int64_t, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); });
    session_->executor().context().taps = nullptr;
    EXPECT_TRUE(status.ok()) << status.message();
    return all;
  }
  std::vector<float> last_logits(std::span<const TokenId> ids, TapSink* taps = nullptr) {
    return logits(ids, static_cast<std::int64_t>(ids.size()) - 1, taps);
  }

 private:
  static LoadedModel load(const std::string& path, const Numerics& numerics, const Overrides& variants,
                          std::int64_t chunk_tokens, int num_threads) {
    LoadOptions options;
    options.numerics = numerics;
    options.variants = variants;
    options.num_threads = num_threads;
    options.max_step_tokens = chunk_tokens;
    options.max_logit_rows = chunk_tokens;
    Result<LoadedModel> loaded = load_model(path, options);
    FATHOM_CHECK(loaded.ok(), loaded.status().message().c_str());
    return std::move(loaded).value();
  }
  static std::unique_ptr<Session> make_session(Model& model, std::int64_t chunk_tokens) {
    Result<std::unique_ptr<Session>> session = Session::make(model, {0, chunk_tokens});
    FATHOM_CHECK(session.ok(), session.status().message().c_str());
    return std::move(session).value();
  }

  LoadedModel loaded_;
  std::unique_ptr<Session> session_;
};

}  // namespace fathom::testing
