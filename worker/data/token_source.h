#ifndef EPS_WORKER_DATA_TOKEN_SOURCE_H_
#define EPS_WORKER_DATA_TOKEN_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "worker/relay/evaluation.h"
#include "worker/relay/relay.h"

namespace eps {

// The tokens of a run as one array of uint16: text files as bytes (a byte-level vocabulary), joined
// in the given order, or one flat .bin of little-endian uint16, memory-mapped. Immutable.
class TokenData {
 public:
  // Returns NotFound with the file, or InvalidArgument for an empty file, mixed kinds, a form that
  // is not read (worker/data/data_form.h), or text with a vocabulary other than 256 (the message
  // explains the use of a .bin). `key` is the configuration key that names the files, for error
  // texts.
  static absl::StatusOr<std::shared_ptr<const TokenData>> Open(
      const std::vector<std::string>& paths, uint32_t vocab_size,
      const std::string& key = "data.path");
  virtual ~TokenData() = default;
  virtual uint64_t size() const = 0;
  virtual uint16_t operator[](uint64_t i) const = 0;
  // Returns the digest of the tokens as little-endian uint16.
  virtual std::string Sha256Hex() const = 0;
  // Returns the entropy of the token frequencies in nats: the loss of a model without context.
  virtual double UnigramEntropy() const = 0;
  // Returns OutOfRange (exit code 65) with file, position and id of the first token >= vocab_size,
  // if there is one.
  virtual absl::Status CheckIds(uint32_t vocab_size) const = 0;
};

// Returns the text files that the quickstart trains on: regular files below
// /usr/share/common-licenses, sorted.
absl::StatusOr<std::vector<std::string>> QuickstartTextFiles();

// Cuts the micro-batches of `spec` (base/job/data_position.h). `data` must outlive it; every source
// keeps a copy of its spec, because it serves all terms of a job.
std::unique_ptr<BatchSource> NewTokenBatchSource(const JobSpec& spec, const TokenData& data);
// For models without tokens (synthetic): batches that carry only their identity.
std::unique_ptr<BatchSource> NewEmptyBatchSource(const JobSpec& spec);

// Supplies the first `samples` held-out samples of `data` (0 means all complete ones) in order, in
// micro-batches of the spec's size; the last one may be smaller. `data` must outlive the source.
// InvalidArgument with the figures if the data holds fewer samples.
absl::StatusOr<std::unique_ptr<EvaluationSource>> NewTokenEvaluationSource(const JobSpec& spec,
                                                                           const TokenData& data,
                                                                           uint64_t samples);
// For models without tokens: inputs that occur in no training step. REQUIRES samples >= 1.
std::unique_ptr<EvaluationSource> NewEmptyEvaluationSource(const JobSpec& spec, uint64_t samples);

}  // namespace eps

#endif  // EPS_WORKER_DATA_TOKEN_SOURCE_H_
