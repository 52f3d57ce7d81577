#include "worker/data/token_stream.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/exit_code.h"
#include "worker/data/token_counts.h"

namespace eps {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the files are little-endian");

constexpr uint64_t kBlock = 32 * 1024;

// `Id` is the type of an id in memory.
template <class Id>
class TokenStream final : public SampleSource {
 public:
  // `owner` keeps `ids` in memory. `sha256` is that of the tokens, if it is known.
  TokenStream(std::shared_ptr<const void> owner, absl::string_view ids, std::string name,
              std::string sha256 = "", std::optional<DataMasking> masking = std::nullopt)
      : owner_(std::move(owner)),
        name_(std::move(name)),
        ids_(reinterpret_cast<const Id*>(ids.data())),
        count_(ids.size() / sizeof(Id)),
        sha256_(std::move(sha256)),
        masking_(std::move(masking)) {}

  uint64_t tokens() const override { return count_; }
  uint64_t rows() const override { return 0; }
  std::string Sha256Hex() const override { return sha256_.empty() ? Digest() : sha256_; }
  uint32_t row_tokens() const override { return 0; }
  std::optional<DataMasking> masking() const override { return masking_; }
  uint64_t samples(uint32_t seq_len) const override { return (count_ - 1) / seq_len; }
  uint32_t Length(uint64_t /*sample*/, uint32_t seq_len) const override { return seq_len; }

  void Read(uint64_t sample, MicroBatch* batch) const override {
    const uint64_t first = sample * batch->seq_len;
    EPS_CHECK(first + batch->seq_len < count_);
    const Id* const begin = ids_ + first;
    batch->tokens.insert(batch->tokens.end(), begin, begin + batch->seq_len);
    batch->labels.insert(batch->labels.end(), begin + 1, begin + 1 + batch->seq_len);
  }

  double UnigramEntropy() const override {
    TokenCounts counts;
    for (uint64_t i = 0; i < count_; ++i) counts.Add(ids_[i]);
    return counts.Entropy();
  }

  absl::Status CheckContent(const DataNeeds& needs) const override {
    const uint32_t vocab_size = needs.vocab_size;
    const Id* const end = ids_ + count_;
    const Id* const wrong =
        std::find_if(ids_, end, [vocab_size](Id id) { return id >= vocab_size; });
    if (wrong == end) return absl::OkStatus();
    return WithExitCode(
        absl::OutOfRangeError(absl::StrCat("token ", wrong - ids_, " of ", name_, " has id ",
                                           uint64_t{*wrong}, ", but the model's vocabulary has ",
                                           vocab_size, " ids (vocab_size of model.path)")),
        ExitCode::kDataInvalid);
  }

 private:
  // Returns the digest of the ids as little-endian uint16.
  std::string Digest() const {
    Sha256 hash;
    std::vector<uint16_t> block;
    for (uint64_t begin = 0; begin < count_; begin += kBlock) {
      block.assign(ids_ + begin, ids_ + std::min(count_, begin + kBlock));
      hash.Update({reinterpret_cast<const char*>(block.data()), block.size() * sizeof(uint16_t)});
    }
    return ToHex(hash.Finish());
  }

  const std::shared_ptr<const void> owner_;
  const std::string name_;
  const Id* const ids_;
  const uint64_t count_;
  const std::string sha256_;
  const std::optional<DataMasking> masking_;
};

template <class Id>
std::shared_ptr<const SampleSource> StreamOf(std::shared_ptr<const DataFile> file) {
  const DataColumn& tokens = *file->header().Find("tokens");
  return std::make_shared<const TokenStream<Id>>(file, file->bytes(tokens), file->name(),
                                                 tokens.sha256, file->header().masking);
}

}  // namespace

std::shared_ptr<const SampleSource> NewTextStream(std::string bytes, std::string name) {
  const auto owner = std::make_shared<const std::string>(std::move(bytes));
  return std::make_shared<const TokenStream<uint8_t>>(owner, *owner, std::move(name));
}

std::shared_ptr<const SampleSource> NewBinStream(MappedFile file, std::string name) {
  const auto owner = std::make_shared<const MappedFile>(std::move(file));
  return std::make_shared<const TokenStream<uint16_t>>(owner, owner->bytes(), std::move(name));
}

std::shared_ptr<const SampleSource> NewFileStream(DataFile file) {
  auto owner = std::make_shared<const DataFile>(std::move(file));
  const bool is_short = owner->header().Find("tokens")->type == DataType::kU16;
  return is_short ? StreamOf<uint16_t>(std::move(owner)) : StreamOf<uint32_t>(std::move(owner));
}

}  // namespace eps
