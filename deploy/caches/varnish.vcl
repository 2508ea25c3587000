# Varnish 7.1 or newer, with varnish-modules, as a cache in front of a node in proxy mode. Copy this
# file to /etc/varnish/default.vcl, and set the address of your node, or of the balancer in front of
# your nodes. `varnishd -C -f FILE` checks it. Start varnishd with `-p feature=-http2`: over HTTP/2, Varnish
# 7.1 and 7.7 end an aborted response normally, so a client takes a truncated file for a complete one.
vcl 4.1;

import std;
import xkey;

backend node {
    .host = "127.0.0.1";
    .port = "4000";
    .connect_timeout = 2s;
    # A node may send nothing for AP_RENDER_TIMEOUT in its queue, for AP_RENDER_TIMEOUT again until the
    # first byte, and for a probe.
    .first_byte_timeout = 630s;
    .between_bytes_timeout = 630s;
}

# Who may remove responses from this cache.
acl purgers {
    "127.0.0.1";
    "::1";
}

sub vcl_recv {
    # With AP_CACHE_TAG_HEADER=xkey at the nodes, this removes all responses for a source:
    # curl -X PURGE -H 'xkey-purge: TAG' http://127.0.0.1:6081/
    if (req.method == "PURGE") {
        # Varnish appends the client's address to X-Forwarded-For. If there are several, a proxy on
        # this machine forwards the request of another client.
        if (client.ip !~ purgers || req.http.X-Forwarded-For ~ ",") {
            return (synth(403));
        }
        return (synth(200, "Purged " + xkey.purge(req.http.xkey-purge)));
    }
    # The node ignores all of these, and Varnish would not look up a request with the last two.
    set req.url = regsub(req.url, "\?.*", "");
    unset req.http.Authorization;
    unset req.http.Cookie;
    # Under /media/, the last segment is a file name, for podcast directories: the node and the key are
    # without it.
    set req.url = regsub(req.url, "^/media(/.*)/[^/]*$", "\1");
    # A client may pause for as long as the nodes allow: ten minutes.
    set sess.idle_send_timeout = 630s;
}

sub vcl_hash {
    # The path alone is the key.
    hash_data(req.url);
    return (lookup);
}

sub vcl_miss {
    # A HEAD stays a HEAD. As a GET, it would start a render.
    if (req.method == "HEAD") {
        return (pass);
    }
}

sub vcl_backend_response {
    # A URL with exp ends at its second, not ten seconds later.
    set beresp.grace = 0s;
    # The stream of a render is not stored. Varnish would let all clients fetch on their own for two
    # minutes. A second later, they may wait for one fetch of the stored variant.
    if (beresp.http.Surrogate-Control ~ "no-store") {
        set beresp.uncacheable = true;
        set beresp.ttl = 1s;
        return (deliver);
    }
    # What the memory of this cache cannot hold breaks off, so the node alone sends large variants. This
    # limit, in bytes, fits Debian's default of 256 MB ("-s malloc,256m").
    if (std.integer(beresp.http.Content-Length, 0) > 64000000) {
        return (pass(1h));
    }
}

sub vcl_deliver {
    # X-Audio-Proxy is the node's, as it was when the response was stored.
    if (obj.hits > 0) {
        set resp.http.X-Cache = "HIT";
    } else {
        set resp.http.X-Cache = "MISS";
    }
}
