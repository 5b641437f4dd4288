#include "checkpoint/config.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace fathom {
namespace {

using Json = nlohmann::json;

// Upper ends of what a config may ask for: far above Pro, low enough that products stay in 64 bits and no
// list sized by them is absurd.
constexpr std::int64_t kMaxVocabulary = 1 << 22;
constexpr std::int64_t kMaxWidth = 1 << 16;
constexpr std::int64_t kMaxLayers = 256;
constexpr std::int64_t kMaxExperts = 2048;
constexpr std::int64_t kMaxPositions = 1 << 27;
constexpr std::int64_t kMaxDraftStages = 16;

// A value for an error message: short, one line.
std::string describe(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr std::size_t kLongest = 80;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

// Reads keys of one JSON object; the first failure is kept and later reads return defaults.
class KeyReader {
 public:
  KeyReader(const Json& object, std::string origin) : object_(object), origin_(std::move(origin)) {}

  const Status& status() const { return status_; }

  void fail(const std::string& key, const std::string& found, const std::string& expected) {
    if (status_.ok()) {
      status_ = invalid_argument(origin_ + ": key \"" + key + "\": found " + found + ", expected " + expected);
    }
  }

  // nullptr when absent or null.
  const Json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  void read_int(const char* key, std::int64_t low, std::int64_t high, std::int32_t& value) {
    if (const Json* json = find(key)) {
      check_int(key, *json, low, high, value);
    } else {
      fail(key, "nothing", int_range(low, high));
    }
  }
  void read_optional_int(const char* key, std::int64_t low, std::int64_t high, std::int32_t& value) {
    if (const Json* json = find(key)) check_int(key, *json, low, high, value);
  }

  void read_float(const char* key, float low, float high, float& value) {
    if (const Json* json = find(key)) {
      check_float(key, *json, low, high, value);
    } else {
      fail(key, "nothing", float_range(low, high));
    }
  }
  void read_optional_float(const char* key, float low, float high, float& value) {
    if (const Json* json = find(key)) check_float(key, *json, low, high, value);
  }

  // Over 0, to `high`.
  void read_optional_positive_float(const char* key, float high, float& value) {
    const Json* json = find(key);
    if (json == nullptr) return;
    check_float(key, *json, 0.0f, high, value);
    if (status_.ok() && value <= 0.0f) fail(key, describe(*json), "a number over 0, to " + describe(Json(high)));
  }

  void read_optional_bool(const char* key, bool& value) {
    const Json* json = find(key);
    if (json == nullptr) return;
    if (!json->is_boolean()) return fail(key, describe(*json), "true or false");
    value = json->get<bool>();
  }

  // Absent is fine; present must equal `expected`.
  void require_text(const char* key, const char* expected) {
    const Json* json = find(key);
    if (json == nullptr) return;
    if (!json->is_string() || json->get_ref<const std::string&>() != expected) {
      fail(key, describe(*json), "\"" + std::string(expected) + "\"");
    }
  }
  void require_bool(const char* key, bool expected) {
    bool value = expected;
    read_optional_bool(key, value);
    if (value != expected) fail(key, value ? "true" : "false", expected ? "true" : "false");
  }

  void read_int_list(const char* key, std::size_t max_size, std::int64_t low, std::int64_t high,
                     std::vector<std::int32_t>& values) {
    const Json* json = find(key);
    if (json == nullptr) return;
    if (!json->is_array() || json->size() > max_size) {
      return fail(key, json->is_array() ? std::to_string(json->size()) + " entries" : describe(*json),
                  "a list of at most " + std::to_string(max_size) + " integers");
    }
    values.clear();
    for (std::size_t i = 0; i < json->size(); ++i) {
      std::int32_t value = 0;
      check_int((std::string(key) + "[" + std::to_string(i) + "]").c_str(), (*json)[i], low, high, value);
      values.push_back(value);
    }
  }

 private:
  static std::string int_range(std::int64_t low, std::int64_t high) {
    if (low == high) return "the integer " + std::to_string(low);
    return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
  }
  static std::string float_range(float low, float high) {
    return "a number from " + describe(Json(low)) + " to " + describe(Json(high));
  }

  void check_int(const char* key, const Json& json, std::int64_t low, std::int64_t high, std::int32_t& value) {
    const bool fits =
        json.is_number_integer() &&
        (!json.is_number_unsigned() ||
         json.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
    const std::int64_t number = fits ? json.get<std::int64_t>() : 0;
    if (!fits || number < low || number > high) return fail(key, describe(json), int_range(low, high));
    value = static_cast<std::int32_t>(number);
  }
  void check_float(const char* key, const Json& json, float low, float high, float& value) {
    const double number = json.is_number() ? json.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high))) {
      return fail(key, describe(json), float_range(low, high));
    }
    value = static_cast<float>(number);
  }

  const Json& object_;
  std::string origin_;
  Status status_;
};

Result<Json> parse_object(std::string_view text, const std::string& origin) {
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return invalid_argument(origin + ": not valid JSON, expected a JSON object");
  if (!json.is_object()) return invalid_argument(origin + ": found " + describe(json) + ", expected a JSON object");
  return json;
}

// Refuses other architectures before the key checks, whose messages would mislead there.
Status check_architecture(const Json& json, const std::string& origin) {
  const std::string todo =
      ", expected \"deepseek_v4\" (DeepSeek-V4 Flash or Pro); other architectures are not implemented";
  const auto type = json.find("model_type");
  if (type == json.end()) {
    return invalid_argument(origin + ": key \"model_type\": found nothing" + todo);
  }
  if (!type->is_string() || type->get_ref<const std::string&>() != "deepseek_v4") {
    return failed_precondition(origin + ": key \"model_type\": found " + describe(*type) + todo);
  }
  const auto architectures = json.find("architectures");
  if (architectures != json.end()) {
    bool known = false;
    if (architectures->is_array()) {
      for (const Json& name : *architectures) {
        known = known || (name.is_string() && name.get_ref<const std::string&>() == "DeepseekV4ForCausalLM");
      }
    }
    if (!known) {
      return failed_precondition(origin + ": key \"architectures\": found " + describe(*architectures) +
                                 ", expected [\"DeepseekV4ForCausalLM\"]");
    }
  }
  // DeepSeek-V4.1 keeps the family name but not the network.
  for (const char* key : {"engram_config", "engram_layers", "engram_layer_ids", "vision_config"}) {
    const auto it = json.find(key);
    if (it != json.end() && !it->is_null()) {
      return failed_precondition(origin + ": key \"" + key + "\": found " + describe(*it) +
                                 ", expected none: DeepSeek-V4.1 (n-gram tables, vision) is not implemented");
    }
  }
  return {};
}

Status read_quantization(const Json& json, const std::string& origin, ModelConfig& config) {
  KeyReader top(json, origin);
  if (const Json* expert = top.find("expert_dtype")) {
    const std::string name = expert->is_string() ? expert->get<std::string>() : std::string();
    if (name == "fp4") {
      config.expert_dtype = ExpertDType::kFp4;
    } else if (name == "fp8") {
      config.expert_dtype = ExpertDType::kFp8;
    } else {
      top.fail("expert_dtype", describe(*expert), "\"fp4\" or \"fp8\"");
    }
  }
  FATHOM_RETURN_IF_ERROR(top.status());
  const Json* quantization = top.find("quantization_config");
  if (quantization == nullptr) return {};
  if (!quantization->is_object()) {
    top.fail("quantization_config", describe(*quantization), "an object");
    return top.status();
  }
  KeyReader keys(*quantization, origin + ": quantization_config");
  keys.require_text("quant_method", "fp8");
  keys.require_text("fmt", "e4m3");
  keys.require_text("activation_scheme", "dynamic");
  keys.require_text("moe_quant_algo", "NVFP4");
  std::vector<std::int32_t> block = {128, 128};
  keys.read_int_list("weight_block_size", 2, 1, kMaxWidth, block);
  if (keys.status().ok() && block != std::vector<std::int32_t>{128, 128}) {
    keys.fail("weight_block_size", describe(Json(block)), "[128,128] (other block sizes are not implemented)");
  }
  std::int32_t group = 16;
  keys.read_optional_int("group_size", 16, 16, group);
  return keys.status();
}

Status read_rope(const Json& json, const std::string& origin, ModelConfig& config) {
  KeyReader top(json, origin);
  top.read_float("rope_theta", 1.0f, 1e12f, config.rope_theta);
  top.read_float("compress_rope_theta", 1.0f, 1e12f, config.compress_rope_theta);
  FATHOM_RETURN_IF_ERROR(top.status());
  const Json* scaling = top.find("rope_scaling");
  if (scaling == nullptr || !scaling->is_object()) {
    top.fail("rope_scaling", scaling == nullptr ? "nothing" : describe(*scaling),
             "an object with type \"yarn\", factor, beta_fast, beta_slow and original_max_position_embeddings");
    return top.status();
  }
  KeyReader keys(*scaling, origin + ": rope_scaling");
  const char* type_key = scaling->contains("type") ? "type" : "rope_type";
  if (keys.find(type_key) == nullptr) keys.fail("type", "nothing", "\"yarn\"");
  keys.require_text(type_key, "yarn");
  keys.read_float("factor", 1.0f, 65536.0f, config.rope_scaling.factor);
  keys.read_float("beta_fast", 1e-3f, 1e6f, config.rope_scaling.beta_fast);
  keys.read_float("beta_slow", 1e-3f, 1e6f, config.rope_scaling.beta_slow);
  keys.read_int("original_max_position_embeddings", 1, kMaxPositions,
                config.rope_scaling.original_max_position_embeddings);
  return keys.status();
}

void read_compress_ratios(KeyReader& keys, ModelConfig& config) {
  if (keys.find("compress_ratios") == nullptr) {
    return keys.fail("compress_ratios", "nothing",
                     std::to_string(config.num_hidden_layers) + " or more entries of 0, 4 or 128, one per layer");
  }
  keys.read_int_list("compress_ratios", static_cast<std::size_t>(kMaxLayers + kMaxDraftStages), 0, 1 << 20,
                     config.compress_ratios);
  if (!keys.status().ok()) return;
  const std::size_t layers = static_cast<std::size_t>(config.num_hidden_layers);
  const std::size_t entries = config.compress_ratios.size();
  if (entries < layers || entries > layers + static_cast<std::size_t>(kMaxDraftStages)) {
    return keys.fail("compress_ratios", std::to_string(entries) + " entries",
                     std::to_string(layers) + " (num_hidden_layers) plus one for each draft stage");
  }
  for (std::size_t i = 0; i < entries; ++i) {
    const std::int32_t ratio = config.compress_ratios[i];
    const std::string key = "compress_ratios[" + std::to_string(i) + "]";
    if (i >= layers && ratio != 0) return keys.fail(key, std::to_string(ratio), "0: it belongs to a draft stage");
    if (ratio != 0 && ratio != 4 && ratio != 128) {
      return keys.fail(key, std::to_string(ratio),
                       "0, 4 or 128 (other ratios, as in DeepSeek-V4.1, are not implemented)");
    }
  }
}

void read_dspark(KeyReader& keys, ModelConfig& config) {
  keys.read_optional_int("dspark_block_size", 1, 64, config.dspark_block_size);
  if (!config.has_dspark_keys() || !keys.status().ok()) return;
  keys.read_int("dspark_markov_rank", 1, kMaxWidth, config.dspark_markov_rank);
  keys.read_int("dspark_noise_token_id", 0, config.vocab_size - 1, config.dspark_noise_token_id);
  if (keys.find("dspark_target_layer_ids") == nullptr) {
    keys.fail("dspark_target_layer_ids", "nothing", "a list of layer numbers");
  }
  keys.read_int_list("dspark_target_layer_ids", 16, 0, config.num_hidden_layers - 1, config.dspark_target_layer_ids);
  if (keys.status().ok() && config.dspark_target_layer_ids.empty()) {
    keys.fail("dspark_target_layer_ids", "[]", "at least one layer number");
  }
}

// Relations between keys that each are in range.
void check_relations(KeyReader& keys, const ModelConfig& config) {
  const auto require_multiple = [&](const char* key, std::int32_t value, std::int32_t multiple, const char* why) {
    if (value % multiple != 0) {
      keys.fail(key, std::to_string(value), "a multiple of " + std::to_string(multiple) + " (" + why + ")");
    }
  };
  require_multiple("hidden_size", config.hidden_size, 32, "scales cover 32 columns");
  require_multiple("moe_intermediate_size", config.moe_intermediate_size, 32, "scales cover 32 columns");
  require_multiple("num_attention_heads", config.num_attention_heads, config.o_groups, "o_groups");
  if (config.num_experts_per_tok > config.n_routed_experts) {
    keys.fail("num_experts_per_tok", std::to_string(config.num_experts_per_tok),
              "at most n_routed_experts = " + std::to_string(config.n_routed_experts));
  }
  if (config.num_hash_layers > config.num_hidden_layers) {
    keys.fail("num_hash_layers", std::to_string(config.num_hash_layers),
              "at most num_hidden_layers = " + std::to_string(config.num_hidden_layers));
  }
}

}  // namespace

LayerKind ModelConfig::layer_kind(std::int32_t layer) const {
  switch (compress_ratio(layer)) {
    case 4: return LayerKind::kRatio4;
    case 128: return LayerKind::kRatio128;
    default: return LayerKind::kWindow;
  }
}

std::int32_t ModelConfig::num_layers_of(LayerKind kind) const {
  std::int32_t count = 0;
  for (std::int32_t layer = 0; layer < num_hidden_layers; ++layer) count += layer_kind(layer) == kind ? 1 : 0;
  return count;
}

Result<ModelConfig> parse_config(std::string_view text, const std::string& origin) {
  FATHOM_ASSIGN_OR_RETURN(const Json json, parse_object(text, origin));
  FATHOM_RETURN_IF_ERROR(check_architecture(json, origin));
  ModelConfig config;
  KeyReader keys(json, origin);
  keys.read_int("vocab_size", 1, kMaxVocabulary, config.vocab_size);
  keys.read_int("hidden_size", 32, kMaxWidth, config.hidden_size);
  keys.read_int("num_hidden_layers", 1, kMaxLayers, config.num_hidden_layers);
  keys.read_int("num_attention_heads", 1, 1024, config.num_attention_heads);
  keys.read_optional_int("num_key_value_heads", 1, 1, config.num_key_value_heads);
  keys.read_int("head_dim", 512, 512, config.head_dim);
  keys.read_int("qk_rope_head_dim", 64, 64, config.qk_rope_head_dim);
  keys.read_int("q_lora_rank", 1, kMaxWidth, config.q_lora_rank);
  keys.read_int("o_lora_rank", 1, kMaxWidth, config.o_lora_rank);
  keys.read_int("o_groups", 1, 1024, config.o_groups);
  keys.read_int("sliding_window", 128, 128, config.sliding_window);
  keys.read_int("index_n_heads", 1, 1024, config.index_n_heads);
  keys.read_int("index_head_dim", 128, 128, config.index_head_dim);
  keys.read_int("index_topk", 1, 1 << 16, config.index_topk);
  keys.read_int("n_routed_experts", 1, kMaxExperts, config.n_routed_experts);
  keys.read_int("n_shared_experts", 1, 1, config.n_shared_experts);
  keys.read_int("num_experts_per_tok", 1, 64, config.num_experts_per_tok);
  keys.read_int("moe_intermediate_size", 32, kMaxWidth, config.moe_intermediate_size);
  keys.require_text("scoring_func", "sqrtsoftplus");
  keys.require_text("topk_method", "noaux_tc");
  keys.require_text("hidden_act", "silu");
  keys.require_bool("attention_bias", false);
  keys.require_bool("tie_word_embeddings", false);
  keys.require_bool("norm_topk_prob", true);
  keys.read_float("routed_scaling_factor", 1e-6f, 1e6f, config.routed_scaling_factor);
  keys.read_int("num_hash_layers", 0, kMaxLayers, config.num_hash_layers);
  keys.read_float("swiglu_limit", 1e-6f, 1e6f, config.swiglu_limit);
  keys.read_int("hc_mult", 4, 4, config.hc_mult);
  keys.read_int("hc_sinkhorn_iters", 1, 1000, config.hc_sinkhorn_iters);
  keys.read_float("hc_eps", 0.0f, 1.0f, config.hc_eps);
  keys.read_float("rms_norm_eps", 0.0f, 1.0f, config.rms_norm_eps);
  keys.read_int("max_position_embeddings", 1, kMaxPositions, config.max_position_embeddings);
  keys.read_optional_int("num_nextn_predict_layers", 0, kMaxDraftStages, config.num_nextn_predict_layers);
  FATHOM_RETURN_IF_ERROR(keys.status());
  keys.read_int("bos_token_id", 0, config.vocab_size - 1, config.bos_token_id);
  keys.read_int("eos_token_id", 0, config.vocab_size - 1, config.eos_token_id);
  read_compress_ratios(keys, config);
  read_dspark(keys, config);
  FATHOM_RETURN_IF_ERROR(keys.status());
  FATHOM_RETURN_IF_ERROR(read_rope(json, origin, config));
  FATHOM_RETURN_IF_ERROR(read_quantization(json, origin, config));
  check_relations(keys, config);
  FATHOM_RETURN_IF_ERROR(keys.status());
  return config;
}

Result<GenerationDefaults> parse_generation_config(std::string_view text, const std::string& origin) {
  FATHOM_ASSIGN_OR_RETURN(const Json json, parse_object(text, origin));
  GenerationDefaults defaults;
  KeyReader keys(json, origin);
  keys.read_optional_bool("do_sample", defaults.do_sample);
  keys.read_optional_float("temperature", 0.0f, 100.0f, defaults.temperature);
  keys.read_optional_positive_float("top_p", 1.0f, defaults.top_p);
  keys.read_optional_float("min_p", 0.0f, 1.0f, defaults.min_p);
  keys.read_optional_positive_float("repetition_penalty", 100.0f, defaults.repetition_penalty);
  keys.read_optional_int("top_k", -1, std::numeric_limits<std::int32_t>::max(), defaults.top_k);
  FATHOM_RETURN_IF_ERROR(keys.status());
  return defaults;
}

}  // namespace fathom
