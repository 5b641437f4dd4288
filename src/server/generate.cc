// POST /generate, SGLang's native route: cumulative text, meta_info.
#include <memory>

#include "server/answer.h"
#include "server/generation_fields.h"
#include "server/openai_json.h"
#include "server/prompt_fields.h"
#include "server/routes.h"

namespace fathom {
namespace {

struct GeneratePlan {
  bool stream = false;
  bool is_list = false;
  bool logprobs = false;
  std::int32_t num_choices = 1;
  std::vector<std::int64_t> prompt_tokens;
  std::vector<std::string> stop_strings;
};

class GenerateRenderer : public AnswerRenderer {
 public:
  GenerateRenderer(const RouteCall& call, GeneratePlan plan)
      : tokenizer_(call.model->tokenizer),
        plan_(std::move(plan)),
        id_(call.id),
        choices_(plan_.prompt_tokens.size() * static_cast<std::size_t>(plan_.num_choices)) {}

  void on_delta(std::size_t prompt, const Delta& delta, std::string* sse) override {
    const std::size_t index =
        prompt * static_cast<std::size_t>(plan_.num_choices) + static_cast<std::size_t>(delta.choice);
    Choice& choice = choices_[index];
    choice.text += delta.text;
    choice.cached_tokens = delta.cached_tokens;
    for (const OutputToken& token : delta.tokens) {
      if (!choice.ids.empty()) choice.ids += ',';
      choice.ids += std::to_string(token.sampled.token);
      ++choice.num_tokens;
      if (plan_.logprobs) add_logprob(choice, token.sampled);
    }
    if (delta.finish) {
      choice.finish = delta.finish;
      choice.num_tokens = delta.finish->usage.completion_tokens;
    }
    if (sse == nullptr) return;
    *sse += "data: ";
    JsonWriter json(*sse);
    write_choice(json, index);
    *sse += "\n\n";
  }

  void on_end(std::string* sse) override {
    if (sse != nullptr) *sse += "data: [DONE]\n\n";
  }

  std::string whole() override {
    std::string out;
    JsonWriter json(out);
    const bool list = plan_.is_list || choices_.size() > 1;
    if (list) json.begin_array();
    for (std::size_t i = 0; i < choices_.size(); ++i) write_choice(json, i);
    if (list) json.end_array();
    return out;
  }

 private:
  struct Choice {
    std::string text, ids, logprobs;
    std::int64_t num_tokens = 0;
    std::int64_t cached_tokens = 0;
    std::optional<Finish> finish;
  };

  void add_logprob(Choice& choice, const SampledToken& token) const {
    if (!choice.logprobs.empty()) choice.logprobs += ',';
    JsonWriter json(choice.logprobs);
    json.begin_array().value(finite_logprob(token.logprob)).value(token.token);
    json.value(token_text(*tokenizer_, token.token)).end_array();
  }

  void write_choice(JsonWriter& json, std::size_t index) const {
    const Choice& choice = choices_[index];
    const std::size_t prompt = index / static_cast<std::size_t>(plan_.num_choices);
    json.begin_object().member("text", choice.text).key("output_ids").raw("[" + choice.ids + "]");
    if (plan_.stream) json.member("index", index);
    json.key("meta_info").begin_object().member("id", choices_.size() > 1 ? id_ + "-" + std::to_string(index) : id_);
    json.key("finish_reason");
    if (!choice.finish) {
      json.null();
    } else {
      write_reason(json, *choice.finish, choice.num_tokens);
    }
    json.member("prompt_tokens", plan_.prompt_tokens[prompt]).member("completion_tokens", choice.num_tokens);
    json.member("cached_tokens", choice.cached_tokens);
    if (choice.finish) {
      const RequestTimes& times = choice.finish->times;
      json.member("e2e_latency", static_cast<double>(times.finished_us - times.submitted_us) / 1e6);
    }
    if (plan_.logprobs) json.key("output_token_logprobs").raw("[" + choice.logprobs + "]");
    json.end_object().end_object();
  }

  void write_reason(JsonWriter& json, const Finish& finish, std::int64_t num_tokens) const {
    json.begin_object();
    if (finish.reason == FinishReason::kLength) {
      json.member("type", "length").member("length", num_tokens);
    } else {
      json.member("type", "stop").key("matched");
      if (finish.reason == FinishReason::kStopString) {
        json.value(plan_.stop_strings[static_cast<std::size_t>(finish.stop_string)]);
      } else {
        json.value(finish.reason == FinishReason::kStopToken ? finish.stop_token : tokenizer_->eos_id());
      }
    }
    json.end_object();
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  GeneratePlan plan_;
  std::string id_;
  std::vector<Choice> choices_;
};

}  // namespace

void handle_generate(RouteCall& call) {
  ApiError error;
  const auto body = parse_body(call.request().body, error);
  if (!body) return call.reply_error(error);
  RequestFields fields(*body);
  const ServedModel& model = *call.model;
  static const JsonValue kNoParameters = [] {
    JsonValue value;
    value.kind = JsonValue::Kind::kObject;
    return value;
  }();
  const JsonValue* parameters = fields.object("sampling_params");
  RequestFields sampling(parameters != nullptr ? *parameters : kNoParameters, "sampling_params.");
  Request request;
  read_sampling(sampling, call.server->options, model, request);
  read_stops(sampling, request);
  if (const auto least = sampling.integer("min_new_tokens", 0, 1 << 30)) request.min_tokens = *least;
  read_shares(sampling, model, request);
  request.max_tokens = 128;  // the route's own default
  read_max_tokens(sampling, {"max_new_tokens"}, 0, request);
  for (const std::string_view key : {"json_schema", "regex", "ebnf", "structural_tag"}) {
    if (sampling.has(key)) sampling.fail(key, "constrained output is asked for through /v1/chat/completions");
  }
  fields.absorb(sampling);

  GeneratePlan plan;
  plan.stream = fields.boolean("stream").value_or(false);
  plan.logprobs = fields.boolean("return_logprob").value_or(false);
  plan.num_choices = request.num_choices;
  plan.stop_strings = request.stop_strings;
  const auto top = fields.integer("top_logprobs_num", 0, model.engine->options().max_logprobs);
  if (plan.logprobs) request.num_logprobs = static_cast<std::int32_t>(top.value_or(0));
  const char* const key = fields.has("input_ids") ? "input_ids" : "text";
  if (const JsonValue* value = fields.find(key); value != nullptr && value->is(JsonValue::Kind::kArray)) {
    plan.is_list = !value->items.empty() && !value->items.front().is(JsonValue::Kind::kNumber);
  }
  auto prompts = read_prompts(fields, key, model, call.server->options.max_prompts);
  if (fields.failed()) return call.reply_error(fields.error());
  AnswerJob job;
  job.stream = plan.stream;
  for (auto& prompt : prompts) {
    Request one = request;
    one.prompt = std::move(prompt.ids);
    plan.prompt_tokens.push_back(static_cast<std::int64_t>(one.prompt.size()));
    if (const auto failed = fit_to_context(model, key, one)) return call.reply_error(*failed);
    job.requests.push_back(std::move(one));
  }
  job.renderer = std::make_unique<GenerateRenderer>(call, std::move(plan));
  Answer::begin(call, std::move(job));
}

}  // namespace fathom
