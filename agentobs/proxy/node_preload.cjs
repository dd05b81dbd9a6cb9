// Sends requests for the base URLs in AGENTOBS_NODE_ROUTES to the recording proxy, or to the server of a replay: those
// of `fetch`, `https.request` and `https.get`. All other requests are unchanged.
"use strict";

const routes = Object.entries(JSON.parse(process.env.AGENTOBS_NODE_ROUTES || "{}"));

// Returns the URL at the proxy; null if the request does not go to a provider.
function redirected(url) {
  for (const [base, proxy] of routes) {
    if (url === base || url.startsWith(base + "/") || url.startsWith(base + "?")) {
      return proxy + url.slice(base.length);
    }
  }
  return null;
}

if (typeof globalThis.fetch === "function") {
  const original = globalThis.fetch;
  globalThis.fetch = function fetch(input, init) {
    try {
      if (typeof input === "string" || input instanceof URL) {
        const url = redirected(String(input));
        if (url !== null) return original.call(this, url, init);
      } else if (input instanceof Request) {
        const url = redirected(input.url);
        if (url !== null) return original.call(this, new Request(url, input), init);
      }
    } catch {
      // The request goes out unchanged: recording must not break the program.
    }
    return original.call(this, input, init);
  };
}

const http = require("node:http");
const https = require("node:https");

// Returns the URL that the arguments of `https.request` describe.
function urlOf(input, options, protocol) {
  if (typeof input === "string" || input instanceof URL) return String(new URL(input));
  const given = input || options || {};
  const host = given.hostname || String(given.host || "localhost").replace(/:\d+$/, "");
  const port = given.port && Number(given.port) !== (protocol === "https:" ? 443 : 80) ? ":" + given.port : "";
  return (given.protocol || protocol) + "//" + host + port + (given.path || "/");
}

function patched(original, protocol, send) {
  return function request(input, options, callback) {
    let url = null;
    let rest = {};
    try {
      const hasUrl = typeof input === "string" || input instanceof URL;
      url = redirected(urlOf(input, null, protocol));
      rest = (hasUrl ? (typeof options === "function" ? {} : options) : input) || {};
      if (typeof options === "function") callback = options;
    } catch {
      url = null;
    }
    if (url === null) return original.apply(this, arguments);
    const target = new URL(url);
    const kept = { ...rest, protocol: "http:", hostname: target.hostname, port: target.port };
    for (const name of ["host", "agent", "servername", "createConnection", "defaultPort", "_defaultAgent"]) {
      delete kept[name];
    }
    kept.path = target.pathname + target.search;
    if (kept.headers && typeof kept.headers === "object" && !Array.isArray(kept.headers)) {
      kept.headers = { ...kept.headers };
      for (const name of Object.keys(kept.headers)) if (name.toLowerCase() === "host") delete kept.headers[name];
    }
    return send(kept, callback);
  };
}

const plain = http.request;
const send = (options, callback) => plain.call(http, options, callback);
https.request = patched(https.request, "https:", send);
https.get = function get(...args) {
  const request = https.request(...args);
  request.end();
  return request;
};
