#include "profile/categories.h"

namespace fathom {
namespace {

constexpr OperationCategory kTable[] = {
    {"sparse_attention", "attention"},
    {"attention_output", "projections"},
    {"linear", "projections"},
    {"rms_norm", "norms and rope"},
    {"rope_rows", "norms and rope"},
    {"q_norm_rope", "norms and rope"},
    {"kv_write", "cache"},
    {"compress_kv", "cache"},
    {"index_query", "indexer"},
    {"attention_rows", "cache"},
    {"index_scores", "indexer"},
    {"select_topk", "indexer"},
    {"moe_route", "router"},
    {"moe_experts", "experts"},
    {"hyper_connection", "hyper-connections"},
    {"hc_head", "hyper-connections"},
    {"embed", "embedding and head"},
    {"lm_head", "embedding and head"},
    {"draft_input", "drafts"},
    {"stream_mean", "drafts"},
    {"markov_head", "drafts"},
    {"sample", "sampling"},
    {"all_reduce", "communication"},
    {"copy", "copies"},
    {"cast", "copies"},
    {"kernel", "other"},
};

}  // namespace

std::span<const OperationCategory> operation_categories() { return kTable; }

std::string_view category_of(std::string_view operation) {
  for (const OperationCategory& entry : kTable) {
    if (entry.operation == operation) return entry.category;
  }
  return "other";
}

}  // namespace fathom
