// POST /v1/completions.
#include <memory>
#include <utility>

#include "server/answer.h"
#include "server/generation_fields.h"
#include "server/openai_json.h"
#include "server/prompt_fields.h"
#include "server/routes.h"

namespace fathom {
namespace {

struct CompletionPlan {
  StreamFields stream;
  bool echo = false;
  std::int32_t logprobs = -1;  // alternatives a token; -1: none
  std::vector<RawPrompt> prompts;
  Request request;  // without prompt
};

// The four parallel lists of the legacy form, as they grow.
struct LogprobLists {
  std::string tokens, values, tops, offsets;
  std::int64_t offset = 0;  // characters of the tokens so far

  void add(const Tokenizer& tokenizer, TokenId id, const SampledToken* sampled) {
    const auto separate = [](std::string& list) {
      if (!list.empty()) list += ',';
    };
    for (std::string* list : {&tokens, &values, &tops, &offsets}) separate(*list);
    JsonWriter(tokens).value(token_key(tokenizer, id));
    offsets += std::to_string(offset);
    for (const char c : tokenizer.token_bytes(id)) offset += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
    if (sampled == nullptr) {
      values += "null";
      tops += "null";
      return;
    }
    JsonWriter(values).value(finite_logprob(sampled->logprob));
    JsonWriter json(tops);
    json.begin_object();
    for (const TokenLogprob& top : sampled->top) {
      json.member(token_key(tokenizer, top.token), finite_logprob(top.logprob));
    }
    json.end_object();
  }

  void write(JsonWriter& json) {
    json.begin_object();
    json.key("tokens").raw("[" + tokens + "]").key("token_logprobs").raw("[" + values + "]");
    json.key("top_logprobs").raw("[" + tops + "]").key("text_offset").raw("[" + offsets + "]");
    json.end_object();
    tokens.clear();
    values.clear();
    tops.clear();
    offsets.clear();
  }
};

class CompletionRenderer : public AnswerRenderer {
 public:
  CompletionRenderer(const RouteCall& call, CompletionPlan plan)
      : tokenizer_(call.model->tokenizer),
        plan_(std::move(plan)),
        id_(make_id("cmpl-")),
        model_(call.server->options.model_names.front()),
        created_(unix_seconds()),
        num_choices_(static_cast<std::size_t>(plan_.request.num_choices)),
        choices_(plan_.prompts.size() * num_choices_),
        echoes_(plan_.prompts.size()),
        usage_(plan_.prompts.size()) {
    for (std::size_t p = 0; p < plan_.prompts.size(); ++p) {
      usage_.set_prompt(p, static_cast<std::int64_t>(plan_.prompts[p].ids.size()));
    }
  }

  std::string id() const override { return id_; }

  void on_delta(std::size_t prompt, const Delta& delta, std::string* sse) override {
    Echo& echo = echoes_[prompt];
    if (plan_.echo && plan_.logprobs >= 0 && delta.choice > 0 && !echo.known) {
      echo.waiting.push_back(delta);
      return;
    }
    if (delta.choice == 0 && !echo.known) {
      echo.known = true;
      echo.logprobs = delta.prompt_logprobs;
    }
    give(prompt, delta, sse);
    for (const Delta& held : std::exchange(echo.waiting, {})) give(prompt, held, sse);
  }

  void on_end(std::string* sse) override {
    if (sse == nullptr) return;
    if (plan_.stream.include_usage) {
      *sse += "data: ";
      JsonWriter json(*sse);
      write_head(json);
      json.key("choices").begin_array().end_array().key("usage");
      write_usage(json, usage_);
      json.end_object();
      *sse += "\n\n";
    }
    *sse += "data: [DONE]\n\n";
  }

  std::string whole() override {
    std::string out;
    JsonWriter json(out);
    write_head(json);
    json.key("choices").begin_array();
    for (std::size_t i = 0; i < choices_.size(); ++i) write_choice(json, i);
    json.end_array().key("usage");
    write_usage(json, usage_);
    json.end_object();
    return out;
  }

 private:
  struct Choice {
    bool begun = false;
    std::string text;  // not sent yet
    LogprobLists logprobs;
    std::optional<Finish> finish;
  };
  // What a prompt's choices repeat of it. Its log probabilities come with the first choice; the others wait for them.
  struct Echo {
    bool known = false;
    std::vector<SampledToken> logprobs;  // of its tokens but the first, until all have repeated them
    std::size_t num_begun = 0;
    std::vector<Delta> waiting;
  };

  void give(std::size_t prompt, const Delta& delta, std::string* sse) {
    const std::size_t index = prompt * num_choices_ + static_cast<std::size_t>(delta.choice);
    Choice& choice = choices_[index];
    usage_.add(prompt, index, delta);
    if (!choice.begun) begin(prompt, choice);
    choice.text += delta.text;
    if (plan_.logprobs >= 0) {
      for (const OutputToken& token : delta.tokens) {
        choice.logprobs.add(*tokenizer_, token.sampled.token, &token.sampled);
      }
    }
    if (delta.finish) choice.finish = delta.finish;
    if (sse == nullptr) return;
    if (choice.text.empty() && choice.logprobs.tokens.empty() && !delta.finish && !plan_.stream.continuous_usage)
      return;
    *sse += "data: ";
    JsonWriter json(*sse);
    write_head(json);
    json.key("choices").begin_array();
    write_choice(json, index);
    json.end_array();
    if (plan_.stream.continuous_usage) {
      json.key("usage");
      write_usage(json, usage_);
    } else if (plan_.stream.include_usage) {
      json.key("usage").null();
    }
    json.end_object();
    *sse += "\n\n";
    choice.text.clear();
  }

  void begin(std::size_t prompt, Choice& choice) {
    choice.begun = true;
    if (!plan_.echo) return;
    Echo& echo = echoes_[prompt];
    const RawPrompt& raw = plan_.prompts[prompt];
    choice.text = raw.text;
    if (plan_.logprobs < 0) return;
    for (std::size_t i = 0; i < raw.ids.size(); ++i) {
      const bool known = i > 0 && i - 1 < echo.logprobs.size();
      choice.logprobs.add(*tokenizer_, raw.ids[i], known ? &echo.logprobs[i - 1] : nullptr);
    }
    if (++echo.num_begun == num_choices_) echo.logprobs = {};
  }

  void write_head(JsonWriter& json) const {
    json.begin_object();
    json.member("id", id_).member("object", "text_completion").member("created", created_).member("model", model_);
  }

  void write_choice(JsonWriter& json, std::size_t index) {
    Choice& choice = choices_[index];
    json.begin_object().member("index", index).member("text", choice.text).key("logprobs");
    if (plan_.logprobs >= 0) {
      choice.logprobs.write(json);
    } else {
      json.null();
    }
    json.key("finish_reason");
    if (!choice.finish) {
      json.null();
    } else {
      const Finish& finish = *choice.finish;
      json.value(finish.reason == FinishReason::kLength ? "length" : "stop").key("stop_reason");
      if (finish.reason == FinishReason::kStopToken) {
        json.value(finish.stop_token);
      } else if (finish.reason == FinishReason::kStopString) {
        json.value(plan_.request.stop_strings[static_cast<std::size_t>(finish.stop_string)]);
      } else {
        json.null();
      }
    }
    json.end_object();
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  CompletionPlan plan_;
  std::string id_;
  std::string model_;
  std::int64_t created_;
  std::size_t num_choices_;
  std::vector<Choice> choices_;  // by prompt, then choice
  std::vector<Echo> echoes_;     // by prompt
  UsageSum usage_;
};

void read_best_of(RequestFields& fields, const Request& request) {
  const auto best_of = fields.integer("best_of", 1, 1 << 20);
  if (best_of && *best_of != request.num_choices) {
    fields.fail("best_of", "found " + std::to_string(*best_of) + ", expected n (" +
                               std::to_string(request.num_choices) +
                               "): every answer is returned, ranking among more is not offered");
  }
}

}  // namespace

void handle_completions(RouteCall& call) {
  ApiError error;
  const auto body = parse_body(call.request().body, error);
  if (!body) return call.reply_error(error);
  RequestFields fields(*body);
  const ServedModel& model = *call.model;
  CompletionPlan plan;
  Request& request = plan.request;
  read_model(fields, call.server->options);
  read_sampling(fields, call.server->options, model, request);
  read_stops(fields, request);
  read_shares(fields, model, request);
  request.max_tokens = 16;  // the API's own default
  read_max_tokens(fields, {"max_tokens", "max_completion_tokens"}, 0, request);
  read_best_of(fields, request);
  plan.stream = read_stream(fields);
  plan.echo = fields.boolean("echo").value_or(false);
  plan.logprobs =
      static_cast<std::int32_t>(fields.integer("logprobs", 0, model.engine->options().max_logprobs).value_or(-1));
  read_unused(fields);
  request.num_logprobs = plan.logprobs;
  if (plan.echo) request.num_prompt_logprobs = plan.logprobs;
  if (const auto suffix = fields.string("suffix"); suffix && !suffix->empty()) {
    fields.fail("suffix", "filling in the middle is not offered");
  }
  read_constraint(fields, model, request);
  plan.prompts = read_prompts(fields, "prompt", model, call.server->options.max_prompts);
  if (fields.failed()) return call.reply_error(fields.error());

  AnswerJob job;
  job.stream = plan.stream.stream;
  for (std::size_t i = 0; i < plan.prompts.size(); ++i) {
    Request one = request;
    one.prompt = plan.prompts[i].ids;
    const std::string param = plan.prompts.size() == 1 ? "prompt" : "prompt[" + std::to_string(i) + "]";
    if (const auto failed = fit_to_context(model, param, one)) return call.reply_error(*failed);
    job.requests.push_back(std::move(one));
  }
  job.renderer = std::make_unique<CompletionRenderer>(call, std::move(plan));
  Answer::begin(call, std::move(job));
}

}  // namespace fathom
