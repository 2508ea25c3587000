#!/bin/sh
# lighttpd's `proxy.balance = "hash"` ignores ports: of several servers on one address, it uses one.
#
# The documentation says that the hash of the URL selects the server. The hash of a server is that of
# its address alone. Servers with one address and different ports have equal hashes for each URL, so
# the same one of them gets every request. With different addresses, the URLs are distributed.
#
# Seen with Debian 12's lighttpd 1.4.69-1, on x86_64. 60 URLs are requested through three servers:
#
#     one address, three ports: 1 of 3 servers used
#     three addresses, one port: 3 of 3 servers used
#
# Exits with 1 if that changes. It needs Debian 12, Python, and 5 MB in a temporary folder. It installs
# nothing, and runs as any user.

set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
cd "$folder"
apt-get download -qq -o APT::Sandbox::User=root lighttpd=1.4.69-1 libnettle8 libxxhash0
for package in *.deb; do
    dpkg -x "$package" "$folder"
done

cat >balance.py <<'END'
import http.client, http.server, os, socket, subprocess, threading, time

FOLDER = os.getcwd()
LIBRARIES = os.path.dirname(subprocess.check_output(
    ["find", "usr/lib", "-name", "libnettle.so*"], text=True).split()[0])


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.used = True
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments):
        pass


def start(address, port=0):
    server = http.server.ThreadingHTTPServer((address, port), Server)
    server.used = False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def used(servers):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    hosts = ",".join(
        f'("host" => "{address}", "port" => {number})'
        for address, number in (server.server_address for server in servers)
    )
    with open("lighttpd.conf", "w") as file:
        file.write(f"""
server.port = {port}
server.bind = "127.0.0.1"
server.document-root = "{FOLDER}"
server.modules = ("mod_proxy")
proxy.balance = "hash"
proxy.server = ("" => ({hosts}))
""")
    lighttpd = subprocess.Popen(
        ["usr/sbin/lighttpd", "-D", "-f", "lighttpd.conf", "-m", f"{FOLDER}/usr/lib/lighttpd"],
        env={"LD_LIBRARY_PATH": LIBRARIES},
        stderr=subprocess.DEVNULL,
    )
    try:
        for number in range(60):
            for _ in range(100):
                try:
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                    connection.request("GET", f"/{number}")
                    assert connection.getresponse().status == 204
                    break
                except OSError:
                    time.sleep(0.1)
    finally:
        lighttpd.terminate()
        lighttpd.wait()
    return f"{sum(server.used for server in servers)} of {len(servers)} servers used"


print("one address, three ports:", used([start("127.0.0.1") for _ in range(3)]))
first = start("127.0.0.1")
others = [start(f"127.0.0.{number}", first.server_port) for number in (2, 3)]
print("three addresses, one port:", used([first, *others]))
END

seen=$(python3 balance.py)
echo "$seen"
[ "$seen" = "one address, three ports: 1 of 3 servers used
three addresses, one port: 3 of 3 servers used" ]
