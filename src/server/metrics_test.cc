#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, CardSegmentsInTheirOrder) {
  ServerMetrics server;
  const HttpServerCounts http{};
  EngineStats engine;
  EXPECT_THAT(render_metrics(server, http, &engine, true, "mini", "1"),
              Not(HasSubstr("fathom_card_segment_seconds_total{")));
  engine.segment_times.layers.resize(2);
  engine.segment_times.embedding = {3000, 2};
  engine.segment_times.layers[1] = {500000, 2};
  engine.segment_times.draft = {250000, 1};
  const std::string text = render_metrics(server, http, &engine, true, "mini", "1");
  for (const char* line : {"fathom_card_segment_seconds_total{segment=\"embedding\"} 0.003\n",
                           "fathom_card_segment_seconds_total{segment=\"layer_1\"} 0.5\n",
                           "fathom_card_segment_seconds_total{segment=\"draft\"} 0.25\n",
                           "fathom_card_segment_samples_total{segment=\"layer_1\"} 2\n",
                           "fathom_card_segment_samples_total{segment=\"draft\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("layer_0")));
}

}  // namespace
}  // namespace fathom
