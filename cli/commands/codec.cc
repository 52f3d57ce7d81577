#include "cli/commands/codec.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/config/app_arguments.h"
#include "base/exit_code.h"
#include "base/job/layout/chunk_map.h"
#include "base/status_macros.h"
#include "cli/commands/plugin/codec_plugin.h"
#include "cli/launch/plugin/chosen_plugin.h"
#include "compression/codec.h"
#include "compression/plugin/check/check_child.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "floats are read and written without conversion");

// The wire format has 32 bits for the index of an element.
constexpr uint64_t kMaxChunkElements = uint64_t{1} << 32;

// A codec family for the list: its name with parameters, and example codecs that determine the
// other columns. Plug-ins have none, and are not listed.
struct Listed {
  std::string name;
  std::string parameters;
  std::vector<const Codec*> examples;
};

std::vector<Listed> ListedCodecs() {
  std::vector<Listed> listed;
  for (const std::string& written : CodecNames()) {
    const size_t end = std::min(written.find_first_of(":["), written.size());
    Listed family{written.substr(0, end), written.substr(end), {}};
    for (const std::string& example : CodecExamples()) {
      if (example.substr(0, example.find(':')) != family.name) continue;
      family.examples.push_back(*FindCodec(example));
    }
    if (!family.examples.empty()) listed.push_back(std::move(family));
  }
  return listed;
}

const char* UseOf(const Codec::Traits& traits) {
  if (traits.uses_residual) return "gradients; omitted values are added to the next gradient";
  if (traits.exact) return "weights and gradients, lossless";
  if (traits.block > 1) return "weights and gradients, one scale per block";
  return "weights and gradients";
}

std::string BitsOf(const Codec& codec) {
  const Codec::Traits& traits = codec.traits();
  if (traits.fixed_size) return absl::StrFormat("%g", traits.bits_per_element);
  return absl::StrFormat("%.3g (%s)", traits.bits_per_element, codec.name());
}

absl::Status Errno(absl::string_view what, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(text);
  if (error == EISDIR) return absl::InvalidArgumentError(text);
  return IoError(text);
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

absl::Status CheckFiles(const RoundtripOptions& options) {
  std::error_code error;
  if (fs::equivalent(options.in, options.out, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.out, " is the input itself; name another output file"));
  }
  const fs::file_status status = fs::status(options.in, error);
  if (status.type() == fs::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat("no file ", options.in));
  }
  if (status.type() != fs::file_type::regular) {
    return absl::InvalidArgumentError(absl::StrCat(options.in, " is not a regular file"));
  }
  const uint64_t found = fs::file_size(options.in, error);
  if (error) return IoError(absl::StrCat("cannot inspect ", options.in, ": ", error.message()));
  const uint64_t expected = uint64_t{options.rows} * options.cols * sizeof(float);
  if (found == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(options.in, ": expected ", expected, " bytes for ",
                                          options.rows, " x ", options.cols, " FP32 values, found ",
                                          found));
}

// Returns the number of rows of a chunk: whole panels, as in a chunk map.
absl::StatusOr<uint64_t> RowsOfChunk(const RoundtripOptions& options, const Codec& codec) {
  const uint64_t elements = uint64_t{options.rows} * options.cols;
  if (options.chunk_elements == 0 && !codec.traits().fixed_size) {
    if (elements < kMaxChunkElements) return options.rows;
    return absl::InvalidArgumentError(absl::StrCat(
        "--shape: ", elements, " elements are too many for one chunk, whose indices have ",
        "32 bits; give --chunk-elements"));
  }
  const uint64_t wanted =
      options.chunk_elements > 0 ? options.chunk_elements : DefaultChunkElements(elements);
  return std::max<uint64_t>(kPanelRows, wanted / options.cols / kPanelRows * kPanelRows);
}

// Replaces the values of one chunk with those that a receiver decodes.
absl::StatusOr<size_t> RoundtripChunk(const Codec& codec, const Chunk& chunk, Axis axis,
                                      float* values) {
  EncodeOptions options;
  options.axis = axis;
  Bytes bytes = EncodeChunk(codec, chunk, options, values);
  const size_t size = bytes.size();
  const Content content = codec.traits().uses_residual ? Content::kGradient : Content::kWeights;
  const auto opened = codec.Open(chunk, axis, std::move(bytes), content);
  if (!opened.ok()) return absl::DataLossError(opened.status().message());
  DecodeChunk(**opened, chunk, values);
  return size;
}

absl::StatusOr<RoundtripSummary> CopyThrough(const RoundtripOptions& options, const Codec& codec,
                                             uint64_t chunk_rows, std::FILE* in, std::FILE* out) {
  RoundtripSummary summary;
  std::vector<float> values;
  for (uint64_t row = 0; row < options.rows; row += chunk_rows) {
    Segment segment;
    segment.row = static_cast<uint32_t>(row);
    segment.rows = static_cast<uint32_t>(std::min<uint64_t>(chunk_rows, options.rows - row));
    segment.cols = options.cols;
    segment.tensor_offset = row * options.cols;
    Chunk chunk;
    chunk.id = ChunkId(static_cast<uint32_t>(summary.chunks));
    chunk.segments = {segment};
    chunk.elements = segment.elements();
    values.resize(chunk.elements);
    if (std::fread(values.data(), sizeof(float), values.size(), in) != values.size()) {
      return Errno("read", options.in);
    }
    EPS_ASSIGN_OR_RETURN(const size_t bytes,
                         RoundtripChunk(codec, chunk, options.axis, values.data()));
    if (std::fwrite(values.data(), sizeof(float), values.size(), out) != values.size()) {
      return Errno("write", options.out);
    }
    ++summary.chunks;
    summary.elements += chunk.elements;
    summary.encoded_bytes += bytes;
  }
  if (std::fflush(out) != 0) return Errno("write", options.out);
  return summary;
}

absl::Status ParseShape(const std::string& text, RoundtripOptions* options) {
  const std::vector<std::string> sides = absl::StrSplit(text, 'x');
  if (sides.size() == 2 && absl::SimpleAtoi(sides[0], &options->rows) &&
      absl::SimpleAtoi(sides[1], &options->cols) && options->rows > 0 && options->cols > 0 &&
      options->cols <= kMaxTensorCols) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--shape=", text, ": expected ROWSxCOLS, such as 70x200, with at least one row and 1 to ",
      kMaxTensorCols, " columns"));
}

absl::Status ParseAxis(const std::string& text, Axis* axis) {
  if (text != "row" && text != "column") {
    return absl::InvalidArgumentError(
        absl::StrCat("--axis=", text, ": expected row or column, the direction of blocks"));
  }
  *axis = text == "row" ? Axis::kRow : Axis::kColumn;
  return absl::OkStatus();
}

absl::Status RunRoundtrip(const RoundtripOptions& options) {
  EPS_ASSIGN_OR_RETURN(const RoundtripSummary summary, RoundtripFile(options));
  std::printf(
      "roundtrip: %s, %u x %u, %s: %.6g bits per element in %s\n", options.codec.c_str(),
      options.rows, options.cols, options.axis == Axis::kRow ? "row" : "column",
      8.0 * static_cast<double>(summary.encoded_bytes) / static_cast<double>(summary.elements),
      summary.chunks == 1 ? "1 chunk" : absl::StrCat(summary.chunks, " chunks").c_str());
  return absl::OkStatus();
}

}  // namespace

std::string CodecTableText() {
  std::vector<std::vector<std::string>> lines = {
      {"number", "name", "bits per element", "block", "for"}};
  for (const Listed& family : ListedCodecs()) {
    const Codec& codec = *family.examples.front();
    const Codec::Traits& traits = codec.traits();
    lines.push_back({absl::StrCat(static_cast<int>(traits.id)), family.name + family.parameters,
                     BitsOf(codec), traits.block > 1 ? absl::StrCat(traits.block) : "-",
                     UseOf(traits)});
  }
  std::string table;
  for (const std::vector<std::string>& line : lines) {
    for (size_t column = 0; column + 1 < line.size(); ++column) {
      size_t width = 0;
      for (const std::vector<std::string>& other : lines) {
        width = std::max(width, other[column].size());
      }
      absl::StrAppendFormat(&table, "%-*s  ", static_cast<int>(width), line[column]);
    }
    absl::StrAppend(&table, line.back(), "\n");
  }
  return table;
}

std::string CodecTableJson() {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Listed& family : ListedCodecs()) {
    const Codec::Traits& traits = family.examples.front()->traits();
    nlohmann::ordered_json object;
    object["number"] = static_cast<int>(traits.id);
    object["name"] = family.name;
    object["parameters"] = family.parameters;
    object["bits_per_element"] = traits.bits_per_element;
    object["block"] = traits.block;
    object["exact"] = traits.exact;
    object["fixed_size"] = traits.fixed_size;
    object["gradients_only"] = traits.uses_residual;
    object["for"] = UseOf(traits);
    for (const Codec* example : family.examples) {
      object["examples"].push_back(std::string(example->name()));
    }
    array.push_back(std::move(object));
  }
  return array.dump(2) + "\n";
}

absl::StatusOr<RoundtripSummary> RoundtripFile(const RoundtripOptions& options) {
  EPS_ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(options.codec));
  EPS_RETURN_IF_ERROR(codec->Ready());
  EPS_ASSIGN_OR_RETURN(const uint64_t chunk_rows, RowsOfChunk(options, *codec));
  EPS_RETURN_IF_ERROR(CheckFiles(options));
  const File in(std::fopen(options.in.c_str(), "rb"));
  if (in == nullptr) return Errno("open", options.in);
  File out(std::fopen(options.out.c_str(), "wb"));
  if (out == nullptr) return Errno("create", options.out);
  absl::StatusOr<RoundtripSummary> summary =
      CopyThrough(options, *codec, chunk_rows, in.get(), out.get());
  if (std::fclose(out.release()) != 0 && summary.ok()) summary = Errno("write", options.out);
  if (!summary.ok()) {
    std::error_code ignored;
    if (fs::is_regular_file(options.out, ignored)) fs::remove(options.out, ignored);
  }
  return summary;
}

absl::Status RunCodec(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == kPluginChild) {
    RunCodecCheckChild({arguments.begin() + 1, arguments.end()});
  }
  CLI::App app{
      "Lists codecs and tries them on a file; begins, describes and checks a plug-in codec. Needs "
      "no server or worker.",
      "eps codec"};
  app.require_subcommand(1);
  CLI::App* const list = app.add_subcommand("list", "the codecs of this build");
  bool json = false;
  list->add_flag("--json", json, "as a JSON array of objects");
  CLI::App* const roundtrip =
      app.add_subcommand("roundtrip", "encode and decode a file of little-endian FP32 values");
  RoundtripOptions options;
  std::string axis = "row";
  std::string shape;
  roundtrip->add_option("--codec", options.codec, "a name from eps codec list, with parameters")
      ->required();
  roundtrip->add_option("--axis", axis, "direction of blocks: row or column (default row)");
  roundtrip->add_option("--shape", shape, "ROWSxCOLS of the values, row-major")->required();
  roundtrip->add_option(
      "--chunk-elements,--chunk_elements", options.chunk_elements,
      "maximum elements of a chunk (default: as in a job; for topk the whole tensor)");
  roundtrip->add_option("IN", options.in, "the values")->required();
  roundtrip->add_option("OUT", options.out, "the new file")->required();
  const CodecPluginCommands plugin(&app);
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  if (list->parsed()) {
    std::fputs((json ? CodecTableJson() : CodecTableText()).c_str(), stdout);
    return absl::OkStatus();
  }
  if (plugin.parsed()) return plugin.Run();
  EPS_RETURN_IF_ERROR(ParseAxis(axis, &options.axis));
  EPS_RETURN_IF_ERROR(ParseShape(shape, &options));
  return RunRoundtrip(options);
}

}  // namespace eps
