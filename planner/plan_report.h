#ifndef EPS_PLANNER_PLAN_REPORT_H_
#define EPS_PLANNER_PLAN_REPORT_H_

// Formats a plan as text, as JSON and as a self-contained HTML page. Pure functions.

#include <string>

#include "planner/plan.h"

namespace eps::planner {

// Returns the memory by tier, the times of the stages, the step, its bottleneck and the next one,
// the largest models, and what to change first.
std::string PlanToText(const Plan& plan);
// Returns the lines that `eps train` prints first: bytes by tier, the step and its bottleneck.
std::string PlanToSummary(const Plan& plan);
// Returns {model, hardware, workers, servers, parameters, tokens_per_step, mode, memory: [{tier,
// machine, available_bytes, used_bytes, beside_bytes, fits, uses: [{kind, bytes, exact}]}], wire:
// {fetched_bytes, pushed_bytes}, step: {seconds, tokens_per_second, mfu, waiting_seconds, worker},
// stages: [{name, encode_seconds, ...}], resources: [{name, busy_seconds, remedy}], capacities:
// [...], cuts: {steps, held_seconds}, step_in_storage_seconds, written_per_day_bytes,
// endurance_days, dollars_per_million_tokens}. Seconds and bytes are plain numbers; an unknown
// value is null.
std::string PlanToJson(const Plan& plan);
// Returns one HTML file without external references, with charts of memory, of resources and of the
// stages' times.
std::string PlanToPage(const Plan& plan);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PLAN_REPORT_H_
