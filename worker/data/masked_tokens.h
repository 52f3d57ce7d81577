#ifndef EPS_WORKER_DATA_MASKED_TOKENS_H_
#define EPS_WORKER_DATA_MASKED_TOKENS_H_

#include <cstdint>
#include <vector>

#include "base/job/job_spec.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Hides tokens of a micro-batch from a masked language model, and labels them with what they were
// (docs/formats/data.md, "Masked tokens"; BERT, Devlin et al. 2019, section 3.1). The choice is a
// function of (seed, step, sample, place), so each pass over the data hides others, and each
// evaluation the same. `samples` holds the number of each row's sample. REQUIRES a model that
// guesses masked tokens; replaces the labels that the batch has. May be called from any thread.
void MaskTokens(const JobSpec& spec, const std::vector<uint64_t>& samples, MicroBatch* batch);

}  // namespace eps

#endif  // EPS_WORKER_DATA_MASKED_TOKENS_H_
