import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.util.Base64;
import java.util.HexFormat;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * Sign paths for audioproxy with Java 17 or newer.
 *
 * <pre>AP_KEY=... AP_SALT=... java Sign.java /f:opus/br:96/plain/local://piece.wav ...</pre>
 */
public final class Sign {
    /**
     * Returns the path with its signature in front.
     *
     * <p>Common mistakes:
     *
     * <ul>
     *   <li>using {@code getBytes()} of the hexadecimal text and not the decoded bytes
     *   <li>{@code getEncoder()} instead of {@code getUrlEncoder()}, or keeping the padding
     *   <li>signing a decoded path ({@code URI.getPath()} is decoded, {@code getRawPath()} is not)
     *   <li>signing a path with a host or a query
     *   <li>{@code URLEncoder}, which encodes a space as +; a path needs %20
     * </ul>
     */
    static String sign(String keyHex, String saltHex, String path) throws GeneralSecurityException {
        if (!keyHex.matches("(?:[0-9A-Fa-f]{2}){32,}")) {
            throw new IllegalArgumentException(
                    "AP_KEY must be at least 32 bytes in hexadecimal digits");
        }
        if (!saltHex.matches("(?:[0-9A-Fa-f]{2})+")) {
            throw new IllegalArgumentException(
                    "AP_SALT must be at least 1 byte in hexadecimal digits");
        }
        // Visible ASCII without # and ?.
        if (!path.matches("/[!\"$->@-~]*")) {
            throw new IllegalArgumentException(
                    "a path starts with a slash, is percent-encoded and has no query");
        }
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(HexFormat.of().parseHex(keyHex), "HmacSHA256"));
        mac.update(HexFormat.of().parseHex(saltHex));
        byte[] digest = mac.doFinal(path.getBytes(StandardCharsets.US_ASCII));
        return "/" + Base64.getUrlEncoder().withoutPadding().encodeToString(digest) + path;
    }

    public static void main(String[] paths) throws GeneralSecurityException {
        String key = System.getenv().getOrDefault("AP_KEY", "");
        String salt = System.getenv().getOrDefault("AP_SALT", "");
        try {
            for (String path : paths) {
                System.out.println(sign(key, salt, path));
            }
        } catch (IllegalArgumentException error) {
            System.err.println("Sign.java: " + error.getMessage());
            System.exit(1);
        }
    }
}
