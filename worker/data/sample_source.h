#ifndef EPS_WORKER_DATA_SAMPLE_SOURCE_H_
#define EPS_WORKER_DATA_SAMPLE_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "base/job/models/model_family.h"
#include "worker/data/data_header.h"
#include "worker/relay/stage_program.h"

namespace eps {

// The properties of a model that its data must fit.
struct DataNeeds {
  uint32_t vocab_size = 0;  // 0: it reads no tokens
  // The digest of its tokenizer (worker/data/tokenizer_digest.h); empty: nothing to compare with.
  std::string tokenizer = {};
  LabelKind labels = LabelKind::kTokens;
  uint32_t classes = 0;             // of labels that are classes
  std::vector<int64_t> image = {};  // channels, height and width; empty: it reads no images
  bool separates_documents = true;  // that share a row
};
// Returns them but for the tokenizer.
DataNeeds NeedsOf(const ModelSpec& model);

// The samples of a run's data. A sample is found by its number alone, so that a resume needs no
// state. Immutable; thread-safe.
class SampleSource {
 public:
  // Opens text files (read as bytes, joined in the given order), one .bin of little-endian uint16
  // ids, or one .epsd file. Files are memory-mapped, except text. Returns NotFound with the file,
  // or InvalidArgument for an empty file, mixed kinds, a form that is not read
  // (worker/data/data_form.h), text with a vocabulary other than 256 (the message shows the command
  // that makes an .epsd file), another tokenizer, a larger vocabulary, other labels or images than
  // the model's, or documents that share rows, which the model would mix. `key` is the
  // configuration key that names the files.
  static absl::StatusOr<std::shared_ptr<const SampleSource>> Open(
      const std::vector<std::string>& paths, const DataNeeds& needs,
      const std::string& key = "data.path");
  virtual ~SampleSource() = default;

  // tokens, samples and sha256 of the data in a job spec. The digest of text and .bin files reads
  // them whole.
  virtual uint64_t tokens() const = 0;
  virtual uint64_t rows() const = 0;
  virtual std::string Sha256Hex() const = 0;
  // The tokens of a row, to which training.seq_len must be equal; 0 if samples have the length
  // that the job chooses.
  virtual uint32_t row_tokens() const = 0;
  // Returns the tokens that the data's tokenizer has for masking, if they are known.
  virtual std::optional<DataMasking> masking() const { return std::nullopt; }
  // Returns the number of samples of `seq_len` tokens.
  virtual uint64_t samples(uint32_t seq_len) const = 0;
  // Returns the tokens of a sample without padding; `seq_len` if it has none.
  virtual uint32_t Length(uint64_t sample, uint32_t seq_len) const = 0;
  // Appends a sample to the columns of `batch`, with the first batch->seq_len of its tokens.
  // REQUIRES sample < samples(seq_len of the job), and that batch->seq_len is that seq_len, or for
  // rows a smaller one.
  virtual void Read(uint64_t sample, MicroBatch* batch) const = 0;

  // Returns the entropy, in nats, of the frequencies of the tokens that are learned: the loss of a
  // model without context; 0 if rows have labels of their own.
  virtual double UnigramEntropy() const = 0;
  // Reads all data once. OutOfRange (exit code 65) with file, position and id of the first token
  // outside the vocabulary; exit code 65 for a row that has a wrong length, a class that the model
  // does not have, or nothing to learn.
  virtual absl::Status CheckContent(const DataNeeds& needs) const = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_DATA_SAMPLE_SOURCE_H_
