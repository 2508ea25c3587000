// Refusals in words: what happened, as the service says it, and what the user can do.

import { element } from "./element.mjs";

const at = (id) => document.getElementById(id);

const SOURCE = "This source cannot be read";
const BUSY = "The service is busy";

// Advice for a source that is not found, by its scheme. The service hides why from its clients. A path has no
// scheme, and its advice ends with the folder of the player.
const WHERE = {
  https: ["Check the address. Its host must be allowed at the start of the player:", "AP_SOURCE_ALLOWLIST=HOST make demo"],
  s3: ["Check the bucket, the key and the permissions of the credentials."],
  local: ["Check the path. It is relative to this folder:"],
};
const OTHER_SCHEME = ["Type a path, or a URL that begins with https:// or s3://."];

// By the error code: the title, and the advice. Text in monospace is a command or a setting.
const FAILURES = {
  not_found: [SOURCE],
  undecodable_source: [SOURCE, "Choose an audio file. The file may be damaged, or may not be audio."],
  video_source: ["This source is a video", "Extract its audio first:", "ffmpeg -i VIDEO -vn -c:a copy AUDIO"],
  source_too_large: ["This source is too large", "Start the player with a higher limit, in bytes:", "AP_MAX_SRC_BYTES"],
  not_configured: [
    "The object store is not configured",
    "Start the player with these settings:",
    "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION",
  ],
  upstream_unavailable: [SOURCE, "Check that the server of the source is running and has a trusted certificate."],
  invalid_options: ["These options do not fit", "Change the marked option, or clear it."],
  expired: ["This URL has expired", "Choose a later time, or clear the expiry."],
  queue_full: [BUSY, "Wait a few seconds, then change an option or reload the page."],
  render_timeout: ["The render took too long", "Trim the source, or start the player with a longer time, in seconds:", "AP_RENDER_TIMEOUT"],
  probe_timeout: [SOURCE, "Start the player with a longer time, in seconds:", "AP_PROBE_TIMEOUT"],
  unreachable: ["The player does not respond", "Start it again, then reload this page:", "make demo"],
  broken_off: ["The render broke off", "The output of the player in its terminal has the reason."],
  unplayable: ["This browser cannot play this format", "Choose another format. The URL works in other programs."],
  no_sources: ["There are no audio files", "Copy audio files into the folder and reload this page, or type a source above."],
};
const OTHERS = ["The request failed", "The output of the player in its terminal has the reason."];

// Show a refusal in the stage, in place of the waveform. Without one, show nothing.
export function showFailure(refusal, source, folder) {
  const box = at("failure");
  document.body.classList.toggle("refusing", Boolean(refusal));
  if (!refusal) {
    box.replaceChildren();
    return;
  }
  const [, scheme = "local"] = /^([a-z0-9]+):\/\//i.exec(source) ?? [];
  const [title, ...known] = FAILURES[refusal.error] ?? OTHERS;
  const where = { ...WHERE, local: [...WHERE.local, folder] }[scheme.toLowerCase()] ?? OTHER_SCHEME;
  const [advice, code] = refusal.error === "not_found" ? where : known;
  box.replaceChildren(
    element("strong", {}, [title]),
    element("p", {}, [refusal.message]),
    element("p", { class: "advice" }, [advice, ...(code ? [" ", element("code", {}, [code])] : [])]),
  );
}
