#include "worker/data/row_source.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/exit_code.h"
#include "worker/data/token_counts.h"

namespace eps {
namespace {

// A column of rows; one that the file does not have has no data.
struct Rows {
  const char* data = nullptr;
  uint64_t row_bytes = 0;
  DataType type = DataType::kU8;

  bool there() const { return data != nullptr; }
  // Returns element j of row i. REQUIRES u8, u16, u32 or i32.
  uint32_t At(uint64_t i, uint64_t j) const {
    const uint64_t width = ElementBytes(type);
    uint32_t value = 0;  // the file is little-endian, as this machine
    std::memcpy(&value, data + i * row_bytes + j * width, width);
    return value;
  }
  bool Bit(uint64_t i, uint64_t j) const {
    return (static_cast<uint8_t>(data[i * row_bytes + j / 8]) >> j % 8 & 1) != 0;
  }
};

class RowSource final : public SampleSource {
 public:
  explicit RowSource(DataFile file)
      : file_(std::move(file)),
        tokens_(Find("tokens")),
        loss_mask_(Find("loss_mask")),
        document_starts_(Find("document_starts")),
        lengths_(Find("lengths")),
        token_types_(Find("token_types")),
        labels_(Find("labels")),
        pixels_(Find("pixels")) {}

  uint64_t tokens() const override {
    return header().samples * std::max<uint64_t>(1, header().seq_len);
  }
  uint64_t rows() const override { return header().samples; }
  std::string Sha256Hex() const override {
    Sha256 hash;
    for (const DataColumn& column : header().columns) {
      hash.Update(absl::StrCat(column.sha256, " ", column.name, " ", NameOf(column.type), "\n"));
    }
    return ToHex(hash.Finish());
  }
  uint32_t row_tokens() const override { return header().seq_len; }
  std::optional<DataMasking> masking() const override { return header().masking; }
  uint64_t samples(uint32_t /*seq_len*/) const override { return header().samples; }

  uint32_t Length(uint64_t sample, uint32_t seq_len) const override {
    return lengths_.there() ? std::min(lengths_.At(sample, 0), seq_len) : seq_len;
  }

  void Read(uint64_t sample, MicroBatch* batch) const override {
    EPS_CHECK(sample < header().samples);
    if (tokens_.there()) ReadTokens(sample, batch);
    if (labels_.there()) ReadLabel(sample, batch);
    if (pixels_.there()) ReadPixels(sample, batch);
  }

  double UnigramEntropy() const override {
    TokenCounts counts;
    for (uint64_t i = 0; !labels_.there() && i < header().samples; ++i) {
      for (uint32_t j = 1; j < header().seq_len; ++j) {
        if (IsLearned(i, j)) counts.Add(tokens_.At(i, j));
      }
    }
    return counts.Entropy();
  }

  absl::Status CheckContent(const DataNeeds& needs) const override {
    for (uint64_t i = 0; labels_.there() && i < header().samples; ++i) {
      if (labels_.type == DataType::kI32 && labels_.At(i, 0) >= needs.classes) {
        return Refuse(i, " has the class ", static_cast<int32_t>(labels_.At(i, 0)),
                      ", but the model has ", needs.classes, " classes, numbered from 0");
      }
    }
    for (uint64_t i = 0; tokens_.there() && i < header().samples; ++i) {
      const uint32_t length = lengths_.there() ? lengths_.At(i, 0) : header().seq_len;
      if (length == 0 || length > header().seq_len) {
        return Refuse(i, " has the length ", length, "; it is 1 to ", header().seq_len);
      }
      bool learns = labels_.there() || needs.labels == LabelKind::kMaskedTokens;
      for (uint32_t j = 0; j < header().seq_len; ++j) {
        if (tokens_.At(i, j) >= needs.vocab_size) {
          return Refuse(i, " has id ", tokens_.At(i, j), " at place ", j,
                        ", but the model's vocabulary has ", needs.vocab_size,
                        " ids (vocab_size of model.path)");
        }
        learns = learns || IsLearned(i, j);
      }
      if (!learns) return Refuse(i, " has no token to learn");
    }
    return absl::OkStatus();
  }

 private:
  const DataHeader& header() const { return file_.header(); }

  Rows Find(const char* name) const {
    const DataColumn* const column = header().Find(name);
    if (column == nullptr) return Rows();
    return {file_.bytes(*column).data(), header().RowBytes(*column), column->type};
  }

  template <class... T>
  absl::Status Refuse(uint64_t row, const T&... what) const {
    return WithExitCode(
        absl::OutOfRangeError(absl::StrCat("row ", row, " of ", file_.name(), what...)),
        ExitCode::kDataInvalid);
  }

  // Returns whether token j of a row is the label of the token before it.
  bool IsLearned(uint64_t i, uint32_t j) const {
    return j > 0 && j < Length(i, header().seq_len) &&
           !(document_starts_.there() && document_starts_.Bit(i, j)) &&
           (!loss_mask_.there() || loss_mask_.Bit(i, j));
  }

  void ReadTokens(uint64_t i, MicroBatch* batch) const {
    const uint32_t length = Length(i, batch->seq_len);
    int32_t position = 0;
    for (uint32_t j = 0; j < batch->seq_len; ++j) {
      batch->tokens.push_back(static_cast<int32_t>(tokens_.At(i, j)));
      if (token_types_.there()) {
        batch->token_types.push_back(static_cast<int32_t>(token_types_.At(i, j)));
      }
      if (!labels_.there()) {
        const bool learned = j + 1 < header().seq_len && IsLearned(i, j + 1);
        batch->labels.push_back(learned ? static_cast<int32_t>(tokens_.At(i, j + 1))
                                        : kIgnoreLabel);
      }
      if (document_starts_.there()) {
        if (j >= length || document_starts_.Bit(i, j)) position = 0;
        batch->positions.push_back(position++);
      }
    }
    if (lengths_.there()) batch->lengths.push_back(length);
  }

  void ReadLabel(uint64_t i, MicroBatch* batch) const {
    const uint32_t bits = labels_.At(i, 0);
    if (labels_.type == DataType::kI32) {
      batch->labels.push_back(static_cast<int32_t>(bits));
      return;
    }
    float number = 0;
    std::memcpy(&number, &bits, sizeof(number));
    batch->targets.push_back(number);
  }

  void ReadPixels(uint64_t i, MicroBatch* batch) const {
    const DataImage& image = *header().image;
    const uint64_t plane = uint64_t{image.height} * image.width;
    for (uint64_t j = 0; j < image.bytes(); ++j) {
      const double byte = static_cast<uint8_t>(pixels_.data[i * pixels_.row_bytes + j]);
      const uint64_t channel = j / plane;
      batch->pixels.push_back(
          static_cast<float>((byte / 255 - image.mean[channel]) / image.std[channel]));
    }
  }

  const DataFile file_;
  const Rows tokens_, loss_mask_, document_starts_, lengths_, token_types_, labels_, pixels_;
};

}  // namespace

std::shared_ptr<const SampleSource> NewRowSource(DataFile file) {
  return std::make_shared<const RowSource>(std::move(file));
}

}  // namespace eps
