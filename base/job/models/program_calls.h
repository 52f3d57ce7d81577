#ifndef EPS_BASE_JOB_MODELS_PROGRAM_CALLS_H_
#define EPS_BASE_JOB_MODELS_PROGRAM_CALLS_H_

// The part of a model program that holds calls. Pure functions.

#include <cstddef>
#include <string>

#include "base/job/models/json_fields.h"
#include "base/job/models/model_program.h"

namespace eps {

// The calls that have a dropout probability, and its place among their arguments.
inline constexpr char kDropoutOp[] = "aten::dropout";
inline constexpr size_t kDropoutProbability = 1;
inline constexpr char kAttentionOp[] = "aten::scaled_dot_product_attention";
inline constexpr size_t kAttentionProbability = 4;

// Reads an entry of `programs`. `where` names it in messages ("stage h.0").
CallList ReadCallList(const nlohmann::json& item, const std::string& where, double max_cost,
                      FirstError* error);

// Returns the number of arguments of all calls, with the items of lists.
size_t CountArguments(const CallList& calls);

// Returns whether a call may drop elements.
bool HasDropout(const CallList& calls);

}  // namespace eps

#endif  // EPS_BASE_JOB_MODELS_PROGRAM_CALLS_H_
