#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "checkpoint/catalog.h"
#include "checkpoint/checkpoint_test_files.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using testing::read_file;
using testing::ScratchDirectory;
using testing::write_file;

std::string file_with_header(const std::string& header, std::size_t data_bytes = 0) {
  const std::uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + std::string(data_bytes, 'x');
}

Result<SafetensorsHeader> parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), static_cast<std::int64_t>(file.size()), "f");
}
std::string failure_of(const std::string& file) {
  const auto header = parse(file);
  return header.ok() ? "parsed" : header.status().message();
}
// "kind name: found / expected" of the only problem.
std::string problem_of(const std::string& header_text, std::size_t data_bytes) {
  const auto header = parse(file_with_header(header_text, data_bytes));
  if (!header.ok()) return header.status().message();
  if (header->problems.size() != 1) return std::to_string(header->problems.size()) + " problems";
  const HeaderProblem& problem = header->problems[0];
  return problem.kind + " " + problem.name + ": " + problem.found + " / " + problem.expected;
}

TEST(SafetensorsHeader, ReadsTensorsInFileOrder) {
  const auto header =
      parse(file_with_header(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[],"data_offsets":[6,10]},)"
                             R"("a\u00e9":{"data_offsets":[0,6],"shape":[3,1],"dtype":"BF16"}}   )",
                             10));
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_TRUE(header->problems.empty());
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "aé");
  EXPECT_EQ(header->tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(header->tensors[0].shape, (Shape{3, 1}));
  EXPECT_EQ(header->tensors[1].shape, Shape{});
  EXPECT_EQ(header->tensors[1].end, 10);
  ASSERT_EQ(header->metadata.size(), 1u);
  EXPECT_EQ(header->metadata[0].second, "pt");
}

TEST(SafetensorsHeader, RefusesBrokenFiles) {
  EXPECT_THAT(failure_of(""), HasSubstr("found 0 bytes"));
  EXPECT_THAT(failure_of("1234567"), HasSubstr("found 7 bytes"));
  EXPECT_THAT(failure_of(std::string(8, '\xff')), HasSubstr("header length of 18446744073709551615"));
  std::string longer = file_with_header("{}");
  longer[0] = 50;
  EXPECT_THAT(failure_of(longer), HasSubstr("found a header length of 50 bytes in a file of 10"));
  EXPECT_THAT(failure_of("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"),
              HasSubstr("Git LFS pointer"));
  EXPECT_THAT(failure_of(file_with_header("{\"a\": ")), HasSubstr("invalid JSON at header byte"));
  EXPECT_THAT(failure_of(file_with_header("\x80\x81garbage")), HasSubstr("invalid JSON"));
  EXPECT_THAT(failure_of(file_with_header("")), HasSubstr("invalid JSON"));
  EXPECT_THAT(failure_of(file_with_header("[]")), HasSubstr("unexpected a list"));
  EXPECT_THAT(failure_of(file_with_header("{\"a\":1}")), HasSubstr("unexpected a number"));
  EXPECT_THAT(failure_of(file_with_header("{\"a\":{\"b\":{}}}")), HasSubstr("unexpected an object in tensor \"a\""));
  EXPECT_THAT(failure_of(file_with_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}")),
              HasSubstr("no dtype, shape or data_offsets in tensor \"a\""));
  EXPECT_THAT(failure_of(file_with_header(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})")),
              HasSubstr("a negative number in tensor \"a\""));
  EXPECT_THAT(failure_of(file_with_header(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})")),
              HasSubstr("a fraction"));
  EXPECT_THAT(failure_of(file_with_header(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})")),
              HasSubstr("unexpected a list"));
  EXPECT_NE(failure_of(file_with_header(std::string(1 << 20, '{'))), "parsed");
}

TEST(SafetensorsHeader, NamesTensorsThatDoNotFit) {
  EXPECT_THAT(problem_of(R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", 2),
              HasSubstr("dtype a: dtype \"F4\""));
  EXPECT_THAT(problem_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
              HasSubstr("extent a: 4 bytes / 8 bytes for F32 [2]"));
  EXPECT_THAT(problem_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7),
              HasSubstr("truncated a: a file that ends at data byte 7 / data up to byte 8"));
  EXPECT_THAT(problem_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8), HasSubstr("extent a"));
  EXPECT_THAT(problem_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8), HasSubstr("extent a"));
  EXPECT_THAT(problem_of(R"({"a":{"dtype":"I8","shape":[1,1,1,1,1],"data_offsets":[0,1]}})", 1),
              HasSubstr("at most 4 dimensions"));
  EXPECT_THAT(problem_of(R"({"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 1),
              HasSubstr("shape a: shape [4294967296, 4294967296]"));
  EXPECT_THAT(problem_of(R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},)"
                         R"("b":{"dtype":"I8","shape":[2],"data_offsets":[1,3]}})",
                         3),
              HasSubstr("overlap b: bytes from 1, inside a"));
  EXPECT_THAT(problem_of(R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
                         R"("a":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}})",
                         2),
              HasSubstr("duplicate a"));
  EXPECT_THAT(problem_of(R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}})", 5),
              HasSubstr("gap : 4 data bytes that belong to no tensor"));
  EXPECT_EQ(problem_of(R"({"a":{"dtype":"I8","shape":[0,7],"data_offsets":[0,0]}})", 0), "0 problems");
}

TEST(SafetensorsWriter, WhatIsWrittenReadsBack) {
  const ScratchDirectory scratch;
  const std::string path = scratch.file("out.safetensors");
  const float values[3] = {1.5f, -2.0f, 0.25f};
  const std::int32_t position = 7;
  const NamedTensor tensors[2] = {
      {"logits.0", DType::kF32, {1, 3}, std::as_bytes(std::span(values))},
      {"a \"quoted\" name", DType::kI32, {1}, std::as_bytes(std::span(&position, 1))},
  };
  ASSERT_TRUE(write_safetensors(path, tensors).ok());
  const auto catalog = open_catalog(path);
  ASSERT_TRUE(catalog.ok()) << catalog.status().message();
  EXPECT_TRUE(catalog->findings().empty());
  const TensorInfo* logits = catalog->find("logits.0");
  ASSERT_NE(logits, nullptr);
  EXPECT_EQ(logits->shape, (Shape{1, 3}));
  EXPECT_EQ(std::memcmp(catalog->bytes(*logits).data(), values, sizeof values), 0);
  EXPECT_NE(catalog->find("a \"quoted\" name"), nullptr);
  EXPECT_FALSE(catalog->require("other").ok());
}

TEST(SafetensorsWriter, HolesReadAsZeros) {
  const ScratchDirectory scratch;
  const std::string path = scratch.file("sparse.safetensors");
  auto writer = SafetensorsWriter::open(path, {{"a", DType::kU8, {1 << 30}}, {"b", DType::kU8, {1}}});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->append_hole(1 << 30).ok());
  EXPECT_FALSE(std::filesystem::exists(path)) << "visible before it is finished";
  ASSERT_TRUE((*writer)->append_hole(1).ok());
  ASSERT_TRUE((*writer)->finish().ok());
  EXPECT_EQ(static_cast<std::int64_t>(std::filesystem::file_size(path)), (*writer)->file_bytes());
}

TEST(SafetensorsWriter, UnfinishedFilesLeaveNothing) {
  const ScratchDirectory scratch;
  {
    auto writer = SafetensorsWriter::open(scratch.file("x.safetensors"), {{"a", DType::kU8, {4}}});
    ASSERT_TRUE(writer.ok());
    EXPECT_FALSE((*writer)->finish().ok()) << "finished without its data";
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(SafetensorsWriter, AFullDiskIsOneErrorAndNoFile) {
  const ScratchDirectory scratch;
  // A file size limit stands for the full disk: write fails the same way, at the same place.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 100'000;
  setrlimit(RLIMIT_FSIZE, &small);
  const std::vector<std::byte> data(4 << 20);
  const NamedTensor tensor{"a", DType::kU8, {4 << 20}, data};
  const Status status = write_safetensors(scratch.file("x.safetensors"), std::span(&tensor, 1));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_THAT(status.message(), HasSubstr("x.safetensors"));
  EXPECT_THAT(status.message(), HasSubstr("(100000 of "));
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

}  // namespace
}  // namespace fathom
