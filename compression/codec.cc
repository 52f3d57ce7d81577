#include "compression/codec.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/mutex.h"

namespace eps {
namespace {

// The registered families and the codecs created from them so far. Thread-safe.
class Registry {
 public:
  // Never destroyed: codecs live as long as the process.
  static Registry& Get() {
    static Registry* const registry = new Registry();
    return *registry;
  }

  void Add(CodecFamily family) {
    MutexLock lock(&mu_);
    for (const auto& [id, other] : families_) {
      EPS_CHECK_MSG(id != family.id && other.name != family.name,
                    "codecs " << family.name << " and " << other.name << " share name or number "
                              << static_cast<int>(id));
    }
    families_.emplace(family.id, std::move(family));
  }

  absl::StatusOr<const Codec*> Find(absl::string_view name) {
    MutexLock lock(&mu_);
    const auto known = codecs_.find(name);
    if (known != codecs_.end()) return known->second.get();
    std::vector<std::string> pieces = absl::StrSplit(name, ':');
    for (const auto& [id, family] : families_) {
      if (family.name != pieces.front()) continue;
      pieces.erase(pieces.begin());
      absl::StatusOr<std::unique_ptr<Codec>> codec = family.create(name, pieces);
      if (!codec.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("codec \"", name, "\": ", codec.status().message(), "; the syntax is ",
                         family.name, family.parameters));
      }
      return codecs_.emplace(std::string(name), *std::move(codec)).first->second.get();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("there is no codec \"", name, "\"; known are ", absl::StrJoin(Names(), ", ")));
  }

  bool Knows(CodecId id) {
    MutexLock lock(&mu_);
    return families_.count(id) > 0;
  }

  std::vector<std::string> NamesOfAll() {
    MutexLock lock(&mu_);
    return Names();
  }

  std::vector<std::string> Examples() {
    MutexLock lock(&mu_);
    std::vector<std::string> examples;
    for (const auto& [id, family] : families_) {
      examples.insert(examples.end(), family.examples.begin(), family.examples.end());
    }
    return examples;
  }

 private:
  std::vector<std::string> Names() const EPS_REQUIRES(mu_) {
    std::vector<std::string> names;
    for (const auto& [id, family] : families_) {
      names.push_back(absl::StrCat(family.name, family.parameters));
    }
    return names;
  }

  Mutex mu_;
  std::map<CodecId, CodecFamily> families_ EPS_GUARDED_BY(mu_);
  std::map<std::string, std::unique_ptr<Codec>, std::less<>> codecs_ EPS_GUARDED_BY(mu_);
};

// Visits the long rows of a chunk, if `by_rows`, and the tiles of everything else.
template <class RowVisitor, class TileVisitor>
void ForEachPart(const Chunk& chunk, bool by_rows, RowVisitor visit_row, TileVisitor visit_tile) {
  ForEachTile(chunk, [&](const Tile& tile) {
    const Segment& s = chunk.segments[tile.segment];
    if (!by_rows || !HasLongRows(s)) {
      visit_tile(tile, s);
    } else if (tile.col == 0) {
      for (uint32_t r = tile.row; r < tile.row + tile.rows; ++r) {
        visit_row(RowPiece{tile.segment, r, 0, s.cols}, s);
      }
    }
  });
}

constexpr char kElementPayload[] = "eps/inadmissible_element";

}  // namespace

void EncodedChunk::ReadRow(const RowPiece& /*piece*/, float* /*out*/) const {
  EPS_CHECK_MSG(false, "this chunk has no rows to read alone");
}

void TileEncoder::WriteRow(const RowPiece& /*piece*/, const float* /*in*/) {
  EPS_CHECK_MSG(false, "this encoder takes no rows");
}

absl::optional<uint64_t> InadmissibleElement(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kElementPayload);
  uint64_t element = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &element)) {
    return absl::nullopt;
  }
  return element;
}

std::vector<uint64_t> Codec::CountsOf(
    absl::Span<const Chunk> /*chunks*/,
    const std::function<const float*(size_t)>& /*elements*/) const {
  EPS_CHECK_MSG(false, name() << " does not select among whole tensors");
  return {};
}

absl::Status InadmissibleGradient(absl::string_view codec, const Chunk& chunk, uint64_t element,
                                  float value) {
  // Name the element by its row and column in the whole tensor, as the user knows it.
  for (size_t i = 0; i < chunk.segments.size(); ++i) {
    const Segment& s = chunk.segments[i];
    if (element >= s.offset + s.elements()) continue;
    const uint64_t in_segment = element - s.offset;
    absl::Status status = absl::InvalidArgumentError(absl::StrFormat(
        "gradient of tensor %d (chunk %d, segment %d, codec %s): element at row %d, column %d is "
        "%g; every magnitude must be below 2^50 (1.1259e+15)",
        s.tensor.value(), chunk.id.value(), i, codec, s.row + in_segment / s.cols,
        in_segment % s.cols, value));
    status.SetPayload(kElementPayload, absl::Cord(absl::StrCat(element)));
    return status;
  }
  EPS_CHECK_MSG(false, "element " << element << " of chunk " << chunk.id << " is in no segment");
  return absl::OkStatus();
}

CodecRegistration::CodecRegistration(CodecFamily family) { Registry::Get().Add(std::move(family)); }

absl::StatusOr<const Codec*> FindCodec(absl::string_view name) {
  return Registry::Get().Find(name);
}

bool IsKnownCodec(CodecId id) { return Registry::Get().Knows(id); }

std::vector<std::string> CodecNames() { return Registry::Get().NamesOfAll(); }

std::vector<std::string> CodecExamples() { return Registry::Get().Examples(); }

Bytes EncodeChunk(const Codec& codec, const Chunk& chunk, const EncodeOptions& options,
                  const float* elements) {
  const std::unique_ptr<TileEncoder> encoder = codec.NewEncoder(chunk, options);
  ForEachPart(
      chunk, encoder->takes_rows(),
      [&](const RowPiece& row, const Segment& s) {
        encoder->WriteRow(row, elements + row.offset(s));
      },
      [&](const Tile& tile, const Segment& s) {
        encoder->Write(tile, s.cols, elements + tile.offset(s));
      });
  return encoder->Finish();
}

void DecodeChunk(const EncodedChunk& encoded, const Chunk& chunk, float* elements) {
  ForEachPart(
      chunk, encoded.has_rows(),
      [&](const RowPiece& row, const Segment& s) {
        encoded.ReadRow(row, elements + row.offset(s));
      },
      [&](const Tile& tile, const Segment& s) {
        encoded.Read(tile, /*accumulate=*/false, s.cols, elements + tile.offset(s));
      });
}

}  // namespace eps
