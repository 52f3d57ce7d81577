#include "cli/commands/watch/page_answers.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands/jobs/board.h"
#include "cli/commands/watch/page_css.h"
#include "cli/commands/watch/page_html.h"
#include "cli/commands/watch/page_js.h"
#include "cli/driver/status_text.h"
#include "nlohmann/json.hpp"
#include "wire/channel.h"

namespace eps {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kForbidden = 403;
constexpr int kNotFound = 404;
// The page loads its own files, nothing else, and nobody may frame it.
constexpr char kPolicy[] =
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

HttpAnswer Text(const char* type, const char* text) {
  return {200, text, absl::StrCat(type, "; charset=utf-8"), {{"Content-Security-Policy", kPolicy}}};
}

HttpAnswer JsonAnswer(const Json& json) { return {200, LineOf(json), "application/json"}; }

bool IsThisMachine(const std::string& host) {
  const bool has_port = host.find(':') != std::string::npos && host.back() != ']';
  return IsLoopback(has_port ? host : absl::StrCat(host, ":80"));
}

Json StepJson(const v1::StepRecord& record) {
  if (record.has_evaluation()) {
    return {{"step", record.step()}, {"loss", record.evaluation().loss()}, {"evaluation", true}};
  }
  return {{"step", record.step()},
          {"loss", record.loss()},
          {"grad_norm", record.grad_norm()},
          {"lr", record.lr()},
          {"seconds", record.step_seconds()},
          {"tokens", record.tokens()},
          {"skipped", record.skipped()}};
}

Json StateJson(const ClusterWatch& watch) {
  const ClusterWatch::View view = watch.Now();
  Json json;
  json["servers"] = Json::array();
  for (const ClusterWatch::ServerView& server : view.servers) {
    Json one = server.seen ? StatusJson(server.address, server.status) : Json::object();
    one["address"] = server.address;
    one["seen"] = server.seen;
    one["error"] = server.error;
    one["age_seconds"] = server.age_seconds;
    json["servers"].push_back(std::move(one));
  }
  const v1::StatusReply& lead = view.servers[0].status;
  json["job_name"] = lead.job_id() == 0 ? "" : NameOfJob(lead, view.board);
  json["jobs"] = Json::array();
  for (const v1::Job& job : view.board.jobs()) json["jobs"].push_back(BoardJobJson(job));
  json["events"] = Json::array();
  for (const ClusterEvents::Event& event : view.events) {
    json["events"].push_back(
        {{"time_ms", event.time_ms}, {"bad", event.bad}, {"text", event.text}});
  }
  json["last_step"] = lead.has_last_step() ? StepJson(lead.last_step()) : Json();
  return json;
}

// Returns an argument of the request; empty without it.
std::string Argument(const HttpRequest& request, const char* name) {
  const auto it = request.query.find(name);
  return it == request.query.end() ? "" : it->second;
}

Json StepsJson(const ClusterWatch& watch, const HttpRequest& request) {
  uint64_t job_id = 0;
  uint64_t after = 0;
  // Without numbers, the answer has all points.
  if (!absl::SimpleHexAtoi(Argument(request, "job"), &job_id)) job_id = 0;
  if (!absl::SimpleAtoi(Argument(request, "after"), &after)) after = 0;
  const ClusterWatch::Steps steps = watch.StepsAfter(job_id, after);
  Json json;
  json["job"] = absl::StrFormat("%016x", steps.job_id);
  json["points"] = Json::array();
  for (const StepHistory::Point& point : steps.points) {
    Json one = StepJson(point.record);
    one["serial"] = point.serial;
    json["points"].push_back(std::move(one));
  }
  return json;
}

}  // namespace

HttpAnswer AnswerPage(const ClusterWatch& watch, const HttpRequest& request) {
  if (!IsThisMachine(request.host)) {
    return {kForbidden, "this page is for the browser of this machine\n"};
  }
  if (request.path == "/") return Text("text/html", kPageHtml);
  if (request.path == "/page.css") return Text("text/css", kPageCss);
  if (request.path == "/page.js") return Text("text/javascript", kPageJs);
  if (request.path == "/api/state") return JsonAnswer(StateJson(watch));
  if (request.path == "/api/steps") return JsonAnswer(StepsJson(watch, request));
  return {kNotFound, "not found\n"};
}

}  // namespace eps
