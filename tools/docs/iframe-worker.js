// SPDX-License-Identifier: Apache-2.0
// Search for a site opened from a folder. Browsers allow no workers on file:// pages, so the worker runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.frame = frame.contentWindow;
      this.loaded = new Promise((resolve) => { this.frame.workerLoaded = resolve; });
      const text = frame.contentDocument;
      text.open();
      text.write(`<script>
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve) => {
          const script = document.createElement("script");
          script.src = url;
          script.onload = resolve;
          document.body.appendChild(script);
        })), Promise.resolve());
      <\/script><body><script src="${url}" onload="workerLoaded()"><\/script>`);
      text.close();
      addEventListener("message", (event) => {
        if (event.source !== this.frame) return;
        event.stopImmediatePropagation();
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
    }

    postMessage(data) {
      this.loaded = this.loaded.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.frameElement.remove();
    }
  };
}
