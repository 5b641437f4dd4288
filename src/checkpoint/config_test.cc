#include "checkpoint/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

std::string mini_text() {
  auto text = read_text_file(FATHOM_SOURCE_DIR "/models/mini-v4/config.json");
  return text.ok() ? *text : "";
}

// The mini config with one piece of its text replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string text = mini_text();
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string failure_of(const std::string& text) {
  const auto config = parse_config(text, "config.json");
  return config.ok() ? "parsed" : config.status().message();
}

TEST(Config, ReadsTheEmbeddedModel) {
  const auto config = parse_config(mini_text(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->hidden_size, 256);
  EXPECT_EQ(config->num_hidden_layers, 6);
  EXPECT_EQ(config->compress_ratios, (std::vector<std::int32_t>{0, 0, 4, 128, 4, 128, 0}));
  EXPECT_EQ(config->layer_kind(0), LayerKind::kWindow);
  EXPECT_EQ(config->layer_kind(2), LayerKind::kRatio4);
  EXPECT_EQ(config->layer_kind(5), LayerKind::kRatio128);
  EXPECT_EQ(config->num_layers_of(LayerKind::kRatio4), 2);
  EXPECT_FLOAT_EQ(config->compress_rope_theta, 160000.0f);
  EXPECT_FLOAT_EQ(config->rope_scaling.beta_fast, 32.0f);
  EXPECT_FLOAT_EQ(config->hc_eps, 1e-6f);
  EXPECT_TRUE(config->is_hash_layer(1));
  EXPECT_FALSE(config->is_hash_layer(2));
  EXPECT_FALSE(config->has_dspark_keys());
  EXPECT_EQ(config_to_json(*config), config_to_json(mini_config())) << "the built-in and the file differ";
}

TEST(Config, BuiltInsSurviveARoundTrip) {
  for (const ModelConfig& config : {flash_config(), flash_dspark_config(), pro_config(), mini_config()}) {
    const std::string text = config_to_json(config);
    const auto parsed = parse_config(text, "round trip");
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(config_to_json(*parsed), text);
  }
  EXPECT_EQ(flash_config().compress_ratios.size(), 44u);
  EXPECT_EQ(flash_dspark_config().compress_ratios.size(), 46u);
  EXPECT_EQ(pro_config().compress_ratios.size(), 62u);
  EXPECT_EQ(flash_config().num_layers_of(LayerKind::kRatio4), 21);
  EXPECT_EQ(flash_config().num_layers_of(LayerKind::kRatio128), 20);
  EXPECT_EQ(pro_config().compress_ratios[60], 4);
}

TEST(Config, UnknownKeysAreIgnored) {
  EXPECT_EQ(failure_of(with("\"vocab_size\"", "\"frobnicate\": {\"a\": [1]}, \"vocab_size\"")), "parsed");
}

TEST(Config, NamesWhatIsMissing) {
  EXPECT_THAT(failure_of(with("\"compress_ratios\"", "\"x\"")),
              HasSubstr("key \"compress_ratios\": found nothing, expected 6 or more entries"));
  EXPECT_THAT(failure_of(with("\"rope_scaling\"", "\"x\"")), HasSubstr("key \"rope_scaling\": found nothing"));
  EXPECT_THAT(failure_of(with("\"rope_theta\"", "\"x\"")), HasSubstr("key \"rope_theta\": found nothing"));
  EXPECT_THAT(failure_of(with("\"compress_rope_theta\"", "\"x\"")), HasSubstr("\"compress_rope_theta\""));
  EXPECT_THAT(failure_of(with("\"hidden_size\"", "\"x\"")), HasSubstr("key \"hidden_size\": found nothing"));
  EXPECT_THAT(failure_of(with("\"model_type\"", "\"x\"")), HasSubstr("key \"model_type\": found nothing"));
  EXPECT_THAT(failure_of(with("\"factor\"", "\"x\"")), HasSubstr("rope_scaling: key \"factor\": found nothing"));
}

TEST(Config, NamesWrongTypesAndRanges) {
  EXPECT_THAT(failure_of(with("\"vocab_size\": 4096", "\"vocab_size\": \"4096\"")),
              HasSubstr("key \"vocab_size\": found \"4096\", expected an integer from 1"));
  EXPECT_THAT(failure_of(with("\"vocab_size\": 4096", "\"vocab_size\": -1")), HasSubstr("found -1"));
  EXPECT_THAT(failure_of(with("\"vocab_size\": 4096", "\"vocab_size\": 18446744073709551615")),
              HasSubstr("vocab_size"));
  EXPECT_THAT(failure_of(with("\"vocab_size\": 4096", "\"vocab_size\": 1e300")), HasSubstr("vocab_size"));
  EXPECT_THAT(failure_of(with("\"num_hidden_layers\": 6", "\"num_hidden_layers\": 2000000000")), HasSubstr("layers"));
  EXPECT_THAT(failure_of(with("\"n_routed_experts\": 16", "\"n_routed_experts\": 1")),
              HasSubstr("\"num_experts_per_tok\": found 2, expected at most n_routed_experts = 1"));
  EXPECT_THAT(failure_of(with("\"o_groups\": 2", "\"o_groups\": 3")),
              HasSubstr("\"num_attention_heads\": found 8, expected a multiple of 3"));
  EXPECT_THAT(failure_of(with("\"head_dim\": 512", "\"head_dim\": 128")), HasSubstr("expected the integer 512"));
  EXPECT_THAT(failure_of(with("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": true")), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(failure_of(with("\"scoring_func\": \"sqrtsoftplus\"", "\"scoring_func\": \"sigmoid\"")),
              HasSubstr("found \"sigmoid\", expected \"sqrtsoftplus\""));
  EXPECT_THAT(failure_of(with("\"eos_token_id\": 1", "\"eos_token_id\": 4096")), HasSubstr("eos_token_id"));
}

TEST(Config, RatiosMustFitTheLayers) {
  EXPECT_THAT(failure_of(with("\"num_hidden_layers\": 6", "\"num_hidden_layers\": 8")),
              HasSubstr("key \"compress_ratios\": found 7 entries, expected 8"));
  EXPECT_THAT(failure_of(with("\"num_hidden_layers\": 6", "\"num_hidden_layers\": 5")),
              HasSubstr("compress_ratios[5]\": found 128, expected 0: it belongs to a draft stage"));
  EXPECT_THAT(failure_of(with("    4,\n    128,\n", "    4,\n    2,\n")), HasSubstr("compress_ratios[3]\": found 2"));
  EXPECT_THAT(failure_of(with("    4,\n    128,\n", "    4,\n    null,\n")),
              HasSubstr("compress_ratios[3]\": found null"));
}

TEST(Config, RefusesOtherArchitectures) {
  const auto v3 = parse_config(with("\"deepseek_v4\"", "\"deepseek_v3\""), "config.json");
  ASSERT_FALSE(v3.ok());
  EXPECT_EQ(v3.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(v3.status().message(), HasSubstr("found \"deepseek_v3\""));
  EXPECT_THAT(failure_of(with("DeepseekV4ForCausalLM", "LlamaForCausalLM")), HasSubstr("LlamaForCausalLM"));
  EXPECT_THAT(failure_of(with("\"vocab_size\"", "\"vision_config\": {}, \"vocab_size\"")), HasSubstr("V4.1"));
  EXPECT_THAT(failure_of(with("      128,\n      128\n", "      32,\n      32\n")),
              HasSubstr("weight_block_size\": found [32,32], expected [128,128]"));
  EXPECT_THAT(failure_of(with("\"yarn\"", "\"linear\"")), HasSubstr("found \"linear\", expected \"yarn\""));
}

TEST(Config, AnyTextIsAnErrorAndNoCrash) {
  for (const char* text : {"", "[]", "{", "null", "\"x\"", "{\"model_type\":7}", "\xff\xfe", "{}"}) {
    EXPECT_NE(failure_of(text), "parsed") << text;
  }
  EXPECT_NE(failure_of(std::string(100000, '[')), "parsed");
  const std::string text = mini_text();
  for (std::size_t cut = 0; cut + 1 < text.size(); cut += 7) EXPECT_NE(failure_of(text.substr(0, cut)), "parsed");
}

TEST(Config, DsparkKeysComeTogether) {
  const std::string text = config_to_json(flash_dspark_config());
  const auto config = parse_config(text, "config.json");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->dspark_target_layer_ids, (std::vector<std::int32_t>{40, 41, 42}));
  std::string broken = text;
  broken.replace(broken.find("dspark_markov_rank"), 18, "dspark_markov_xxxx");
  EXPECT_THAT(failure_of(broken), HasSubstr("key \"dspark_markov_rank\": found nothing"));
}

TEST(Config, GenerationDefaults) {
  const auto defaults = parse_generation_config(R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95})", "g");
  ASSERT_TRUE(defaults.ok());
  EXPECT_FLOAT_EQ(defaults->temperature, 0.6f);
  EXPECT_FLOAT_EQ(defaults->top_p, 0.95f);
  const auto all =
      parse_generation_config(R"({"min_p": 0.1, "top_k": 40, "repetition_penalty": 1.5, "top_p": null})", "g");
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_FLOAT_EQ(all->min_p, 0.1f);
  EXPECT_FLOAT_EQ(all->repetition_penalty, 1.5f);
  EXPECT_EQ(all->top_k, 40);
  EXPECT_FLOAT_EQ(all->top_p, 1.0f);
  for (const auto& [text, message] : {
           std::pair{R"({"temperature": "hot"})",
                     R"(g.json: key "temperature": found "hot", expected a number from 0)"},
           {R"({"temperature": -0.5})", R"(g.json: key "temperature": found -0.5, expected a number from 0)"},
           {R"({"temperature": 1e9})", R"(key "temperature": found 1)"},
           {R"({"top_p": 0})", R"(g.json: key "top_p": found 0, expected a number over 0, to 1)"},
           {R"({"top_p": 1.5})", R"(key "top_p": found 1.5)"},
           {R"({"min_p": 2})", R"(key "min_p": found 2)"},
           {R"({"repetition_penalty": 0.0})", R"(key "repetition_penalty": found 0.0)"},
           {R"({"top_k": -2})", R"(key "top_k": found -2)"},
           {R"({"top_k": 2.5})", R"(key "top_k": found 2.5)"},
           {R"({"top_k": 4294967296})", R"(key "top_k": found 4294967296)"},
           {R"({"do_sample": 1})", R"(key "do_sample": found 1, expected true or false)"},
       }) {
    const auto refused = parse_generation_config(text, "g.json");
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_THAT(refused.status().message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace fathom
