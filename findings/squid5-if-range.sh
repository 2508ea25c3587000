#!/bin/sh
# Squid 5.7 resumes a file from an older version of it: a later date in If-Range is enough.
#
# If-Range with the Last-Modified of another version must give the whole file (RFC 9110, 13.1.5: the
# condition is true only if the date "exactly matches"). For a response that it has stored, Squid
# compares like If-Unmodified-Since: each date from that of the stored version on gives a 206. If a
# file is replaced by one with an older date, such as one from a backup, clients that resume the
# file that was replaced join parts of both. Squid forwards what it has not stored.
#
# Seen with Debian 12's squid 5.7-2+deb12u6, on x86_64. A client has 22222, the first half of a
# file of 2001, and resumes it. The file is now 1111111111, of 2000. The origin itself compares as
# the RFC says:
#
#     origin: 200 1111111111
#     squid, not stored: 200 1111111111
#     squid, stored: 206 11111
#     squid, stored and stale: 206 11111
#
# Exits with 1 if that changes. It needs Debian 12 with its security updates, Python, and 25 MB in a
# temporary folder. It installs nothing, and runs as any user.

set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
cd "$folder"
apt-get download -qq -o APT::Sandbox::User=root \
    squid=5.7-2+deb12u6 squid-common=5.7-2+deb12u6 squid-langpack=20220130-1 \
    libecap3=1.0.1-3.4 libltdl7=2.4.7-7~deb12u1 libnetfilter-conntrack3=1.0.9-3 \
    libnfnetlink0=1.0.2-2 libmnl0=1.0.4-3
for package in *.deb; do
    dpkg -x "$package" "$folder"
done

cat >resume.py <<'END'
import http.client, http.server, os, socket, subprocess, threading, time

BODY, TAG, DATE = b"1111111111", '"one"', "Sat, 01 Jan 2000 00:00:00 GMT"
DATE_OF_OTHER = "Mon, 01 Jan 2001 00:00:00 GMT"
FOLDER = os.getcwd()


class Origin(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        status, body = 200, BODY
        if self.headers["If-None-Match"] == TAG:
            status, body = 304, b""
        elif self.headers["Range"] == "bytes=5-" and self.headers["If-Range"] in (None, TAG, DATE):
            status, body = 206, BODY[5:]
        self.send_response(status)
        self.send_header("ETag", TAG)
        self.send_header("Last-Modified", DATE)
        age = 0 if self.path == "/stale" else 3600
        self.send_header("Cache-Control", f"max-age={age}")
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        if status == 206:
            self.send_header("Content-Range", "bytes 5-9/10")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def get(port, path, **header):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers=header)
    response = connection.getresponse()
    return f"{response.status} {response.read().decode('latin-1')}"


def resume(port, path):
    return get(port, path, **{"Range": "bytes=5-", "If-Range": DATE_OF_OTHER})


origin = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Origin)
threading.Thread(target=origin.serve_forever, daemon=True).start()
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
with open("squid.conf", "w") as file:
    file.write(f"""
http_port 127.0.0.1:{port} accel defaultsite=localhost no-vhost
cache_peer 127.0.0.1 parent {origin.server_port} 0 no-query no-digest originserver
never_direct allow all
http_access allow all
visible_hostname localhost
cache_effective_user nobody
cache_mem 8 MB
access_log none
cache_log /dev/null
pid_filename none
coredump_dir none
pinger_enable off
shutdown_lifetime 0 seconds
mime_table {FOLDER}/usr/share/squid/mime.conf
icon_directory {FOLDER}/usr/share/squid/icons
error_directory {FOLDER}/usr/share/squid-langpack/templates
err_page_stylesheet {FOLDER}/etc/squid/errorpage.css
""")
squid = subprocess.Popen(
    ["usr/sbin/squid", "-N", "-n", "finding", "-f", f"{FOLDER}/squid.conf"],
    env={"LD_LIBRARY_PATH": f"{FOLDER}/usr/lib/x86_64-linux-gnu"},
    stderr=subprocess.DEVNULL,
)
try:
    for _ in range(300):
        try:
            if get(port, "/ready").startswith("200"):
                break
        except OSError:
            pass
        time.sleep(0.1)
    print("origin:", resume(origin.server_port, "/"))
    print("squid, not stored:", resume(port, "/new"))
    get(port, "/fresh")
    print("squid, stored:", resume(port, "/fresh"))
    get(port, "/stale")
    print("squid, stored and stale:", resume(port, "/stale"))
finally:
    squid.terminate()
    squid.wait()
END

seen=$(python3 resume.py)
echo "$seen"
[ "$seen" = "origin: 200 1111111111
squid, not stored: 200 1111111111
squid, stored: 206 11111
squid, stored and stale: 206 11111" ]
