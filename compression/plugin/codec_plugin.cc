#include "compression/plugin/codec_plugin.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/mutex.h"
#include "base/plugin/names.h"
#include "base/plugin/shared_object.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr char kFeedback[] = "feedback";

// The plug-ins of this process. None is ever unloaded: calls on other threads may use it.
struct Loaded {
  Mutex mu;
  std::vector<std::unique_ptr<const CodecPlugin>> plugins EPS_GUARDED_BY(mu);
};

Loaded* TheLoaded() {
  static Loaded* const loaded = new Loaded;
  return loaded;
}

const CodecPlugin* FindBySha256(absl::string_view sha256) {
  Loaded* const loaded = TheLoaded();
  MutexLock lock(&loaded->mu);
  for (const auto& plugin : loaded->plugins) {
    if (plugin->sha256 == sha256) return plugin.get();
  }
  return nullptr;
}

std::string LoadedText() {
  std::vector<std::string> loaded;
  Loaded* const all = TheLoaded();
  MutexLock lock(&all->mu);
  for (const auto& plugin : all->plugins) {
    loaded.push_back(absl::StrCat(plugin->name, " (SHA-256 ", plugin->sha256, ")"));
  }
  return loaded.empty() ? "none is loaded" : absl::StrCat("loaded: ", absl::StrJoin(loaded, ", "));
}

absl::Status CheckSize(const std::string& path, absl::string_view of, uint32_t found,
                       uint32_t least, uint32_t most) {
  if (found >= least && found <= most) return absl::OkStatus();
  return InvalidPlugin(path, of, " is ", found, "; expected ", least, " to ", most);
}

absl::StatusOr<CodecPlugin> CheckCodec(const std::string& path, const eps_codec* codec) {
  if (codec == nullptr) return InvalidPlugin(path, EPS_CODEC_SYMBOL, "() returned null");
  if (codec->abi != EPS_CODEC_ABI) {
    return InvalidPlugin(path, "has version ", codec->abi, " of the interface; expected ",
                         EPS_CODEC_ABI);
  }
  CodecPlugin plugin;
  plugin.path = path;
  EPS_ASSIGN_OR_RETURN(plugin.name, CopyPluginName(path, "the codec", codec->name));
  EPS_RETURN_IF_ERROR(
      CheckSize(path, "head_bytes", codec->head_bytes, 0, EPS_CODEC_MAX_HEAD_BYTES));
  EPS_RETURN_IF_ERROR(
      CheckSize(path, "bytes_per_1024", codec->bytes_per_1024, 1, EPS_CODEC_MAX_BYTES_PER_1024));
  EPS_RETURN_IF_ERROR(CheckSize(path, "error_feedback", codec->error_feedback, 0, 1));
  if (codec->encode == nullptr) return InvalidPlugin(path, "encode is null");
  if (codec->decode == nullptr) return InvalidPlugin(path, "decode is null");
  plugin.head_bytes = codec->head_bytes;
  plugin.bytes_per_1024 = codec->bytes_per_1024;
  plugin.error_feedback = codec->error_feedback == 1;
  plugin.encode = codec->encode;
  plugin.decode = codec->decode;
  return plugin;
}

}  // namespace

std::string CodecNameOf(const CodecDescription& description) {
  return absl::StrCat(kPluginCodec, ":", description.name, ":", description.sha256, ":",
                      description.head_bytes, ":", description.bytes_per_1024,
                      description.error_feedback ? ":" : "",
                      description.error_feedback ? kFeedback : "");
}

absl::StatusOr<CodecDescription> ParseCodecName(const std::vector<std::string>& pieces) {
  CodecDescription found;
  const bool parsed = (pieces.size() == 4 || (pieces.size() == 5 && pieces[4] == kFeedback)) &&
                      IsPluginName(pieces[0]) && IsSha256(pieces[1]) &&
                      absl::SimpleAtoi(pieces[2], &found.head_bytes) &&
                      absl::SimpleAtoi(pieces[3], &found.bytes_per_1024);
  if (!parsed || found.head_bytes > EPS_CODEC_MAX_HEAD_BYTES || found.bytes_per_1024 == 0 ||
      found.bytes_per_1024 > EPS_CODEC_MAX_BYTES_PER_1024) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected NAME:SHA256:HEAD_BYTES:BYTES_PER_1024[:feedback], as eps train makes it from "
        "quantization.plugin, found \"",
        absl::StrJoin(pieces, ":"), "\""));
  }
  found.name = pieces[0];
  found.sha256 = pieces[1];
  found.error_feedback = pieces.size() == 5;
  return found;
}

absl::StatusOr<const CodecPlugin*> LoadCodecPlugin(const std::string& path,
                                                   absl::string_view expected_sha256) {
  EPS_ASSIGN_OR_RETURN(const PluginFile file, ReadPluginFile(path, "codec", expected_sha256));
  if (const CodecPlugin* const loaded = FindBySha256(file.sha256)) return loaded;
  EPS_ASSIGN_OR_RETURN(void* const entry,
                       LoadPluginSymbol(file, EPS_CODEC_SYMBOL, "compression/plugin/eps_codec.h"));
  EPS_ASSIGN_OR_RETURN(CodecPlugin plugin,
                       CheckCodec(path, reinterpret_cast<eps_codec_entry*>(entry)()));
  plugin.sha256 = file.sha256;
  Loaded* const loaded = TheLoaded();
  MutexLock lock(&loaded->mu);
  return loaded->plugins.emplace_back(std::make_unique<const CodecPlugin>(std::move(plugin))).get();
}

absl::Status LoadCodecOf(absl::string_view codec_name, const std::string& path) {
  const std::vector<std::string> pieces = absl::StrSplit(codec_name, ':');
  if (pieces[0] != kPluginCodec) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const CodecDescription codec,
                       ParseCodecName({pieces.begin() + 1, pieces.end()}));
  if (path.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("quantization.plugin: the job's gradients are encoded by the plug-in codec ",
                     codec.name, " with SHA-256 ", codec.sha256, "; give this process its file"));
  }
  EPS_RETURN_IF_ERROR(LoadCodecPlugin(path, codec.sha256).status());
  return FindLoadedCodec(codec).status();
}

absl::StatusOr<const CodecPlugin*> FindLoadedCodec(const CodecDescription& description) {
  const CodecPlugin* const plugin = FindBySha256(description.sha256);
  if (plugin == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "quantization.plugin: the codec ", description.name, " with SHA-256 ", description.sha256,
        " is not loaded here; ", LoadedText(),
        "; give workers and servers its file, and set servers.trust_plugins=true: servers run it "
        "in their own processes"));
  }
  if (*plugin == description) return plugin;
  return absl::InvalidArgumentError(
      absl::StrCat(plugin->path, ": the job describes this codec as ", CodecNameOf(description),
                   ", and it describes itself as ", CodecNameOf(*plugin)));
}

}  // namespace eps
