// The tensors a config implies, with dtype and shape (spec section 5): the one list that verify, synth and
// the memory plan share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace fathom {

class TensorCatalog;

// Read from the tensors, never from num_nextn_predict_layers.
enum class DraftKind : std::uint8_t {
  kNone,
  kMtp,     // mtp.0: e_proj, h_proj, enorm, hnorm (preview, NVFP4, Pro)
  kDspark,  // mtp.0..2: main_proj, Markov head, confidence head (DSpark, 0731)
};
std::string_view draft_kind_name(DraftKind kind);  // "none", "mtp", "dspark"

// How one expert matrix is stored; decided per matrix from its weight's dtype.
enum class ExpertFormat : std::uint8_t {
  kMxfp4,  // weight I8 [out, in/2], scale F8_E8M0 [out, in/32]
  kNvfp4,  // weight U8 [out, in/2], weight_scale F8_E4M3 [out, in/16], weight_scale_2 F32 [], input_scale F32 []
  kFp8,    // weight F8_E4M3 [out, in], scale F8_E8M0 or F32 [out/128, in/128] (Base)
};
std::string_view expert_format_name(ExpertFormat format);  // "mxfp4", "nvfp4", "fp8"

// Rows of the bytes-by-component table.
enum class Component : std::uint8_t {
  kRoutedExperts,
  kAttention,
  kSharedExpert,
  kCompressor,
  kIndexer,
  kHyperConnection,
  kRouter,
  kNorm,
  kFinal,  // norm.weight, hc_head_*
  kEmbed,
  kHead,
  kDraft,
};
constexpr int kNumComponents = 12;
std::string_view component_name(Component component);

struct ExpectedTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  Component component = Component::kFinal;
  std::int32_t layer = -1;          // trunk layer or draft stage; -1 for the rest
  bool is_scale = false;            // of a quantised weight
  bool is_block_scale = false;      // 128x128 scale: the Base release stores F32 where others store F8_E8M0
  std::int64_t num_parameters = 0;  // a packed byte counts two; 0 for scales and the token-to-expert table

  std::int64_t num_bytes() const { return shape.num_elements() * dtype_bytes(dtype); }
};

// Format of the matrix `<prefix>.weight`, for example "layers.3.ffn.experts.17.w1".
using ExpertFormatOf = std::function<ExpertFormat(std::string_view prefix)>;

struct ExpectedOptions {
  DraftKind draft = DraftKind::kNone;
  std::int32_t num_draft_stages = 0;
  ExpertFormat expert_format = ExpertFormat::kMxfp4;        // trunk; used when expert_format_of is empty
  ExpertFormat draft_expert_format = ExpertFormat::kMxfp4;  // draft experts stay MXFP4 in NVFP4 releases
  DType block_scale_dtype = DType::kF8E8M0;
  ExpertFormatOf expert_format_of;
};

// Trunk first (embed, layers in order, norm, head, hc_head_*), then draft stages.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, const ExpectedOptions& options);

// What the catalog holds, whether complete or not.
struct DraftTensors {
  DraftKind kind = DraftKind::kNone;
  std::int32_t num_stages = 0;
};
DraftTensors find_draft(const TensorCatalog& catalog);

// From the stored weight's dtype; kMxfp4 or kFp8 by the config where the weight is absent.
ExpertFormat find_expert_format(const ModelConfig& config, const TensorCatalog& catalog, std::string_view prefix);

}  // namespace fathom
