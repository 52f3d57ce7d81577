#ifndef EPS_PLANNER_PLAN_REPORT_H_
#define EPS_PLANNER_PLAN_REPORT_H_

// A plan as text for people, as JSON, and as a page of its own. Pure functions.

#include <string>

#include "planner/plan.h"

namespace eps::planner {

// Memory by tier, the times of the slowest stages, the step, its bottleneck and the next one, the
// largest models, and what to change first.
std::string PlanToText(const Plan& plan);
// The lines that stand at the top of `eps train`: bytes by tier, the step and its bottleneck.
std::string PlanToSummary(const Plan& plan);
// {model, hardware, workers, servers, parameters, tokens_per_step, mode, memory: [{tier, machine,
// available_bytes, used_bytes, beside_bytes, fits, uses: [{kind, bytes, exact}]}], wire:
// {fetched_bytes, pushed_bytes}, step: {seconds, tokens_per_second, mfu, waiting_seconds, worker},
// stages: [{name, encode_seconds, ...}], resources: [{name, busy_seconds, remedy}], capacities:
// [...], endurance_days, dollars_per_million_tokens}; seconds and bytes are plain numbers, what is
// not known is null.
std::string PlanToJson(const Plan& plan);
// One HTML file that needs nothing else: charts of memory, of resources and of the stages' times.
std::string PlanToPage(const Plan& plan);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PLAN_REPORT_H_
