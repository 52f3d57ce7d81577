#ifndef EPS_BASE_JOB_MODELS_PROGRAM_OPERATORS_H_
#define EPS_BASE_JOB_MODELS_PROGRAM_OPERATORS_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace eps {

// The operators that a model program may call, sorted: those of LibTorch with their overload, and
// those that the worker computes itself (docs/formats/model_program.md). None draws random numbers
// of LibTorch's, writes an input, or touches anything but its arguments.
absl::Span<const char* const> ProgramOperators();
bool IsProgramOperator(absl::string_view name);

}  // namespace eps

#endif  // EPS_BASE_JOB_MODELS_PROGRAM_OPERATORS_H_
