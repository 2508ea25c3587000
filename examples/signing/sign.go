// Sign paths for audioproxy with Go.
//
//	AP_KEY=... AP_SALT=... go run sign.go /f:opus/br:96/plain/local://piece.wav ...
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Sign returns the path with its signature in front.
//
// Common mistakes:
//
//   - hashing the hexadecimal text and not the decoded bytes
//   - StdEncoding or URLEncoding instead of RawURLEncoding
//   - signing a decoded path (URL.Path is decoded, EscapedPath() is not)
//   - signing a path with a host or a query
//
// Sign exactly the bytes of the request.
func Sign(keyHex, saltHex, path string) (string, error) {
	key, err := hex.DecodeString(keyHex)
	if err != nil || len(key) < 32 {
		return "", errors.New("AP_KEY must be at least 32 bytes in hexadecimal digits")
	}
	salt, err := hex.DecodeString(saltHex)
	if err != nil || len(salt) < 1 {
		return "", errors.New("AP_SALT must be at least 1 byte in hexadecimal digits")
	}
	if !strings.HasPrefix(path, "/") || strings.IndexFunc(path, bare) >= 0 {
		return "", errors.New("a path starts with a slash, is percent-encoded and has no query")
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(salt)
	mac.Write([]byte(path))
	return "/" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)) + path, nil
}

// bare returns whether a character must be percent-encoded in a path.
func bare(r rune) bool { return r <= ' ' || r > '~' || r == '#' || r == '?' }

func main() {
	for _, path := range os.Args[1:] {
		signed, err := Sign(os.Getenv("AP_KEY"), os.Getenv("AP_SALT"), path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "sign.go:", err)
			os.Exit(1)
		}
		fmt.Println(signed)
	}
}
