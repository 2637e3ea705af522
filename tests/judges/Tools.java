import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's command line tools, one after the other, in one JVM.
 *
 * A line of standard input is a command: base64 of its standard input, class and arguments, with
 * zero bytes between them. A line of standard output is the result: exit code, output and errors,
 * the latter two in base64. Java starts for two seconds, a tool runs for a tenth of one.
 */
public final class Tools {
    /** Thrown in place of an exit. */
    private static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    /** The exit code of the running tool, once it is known. */
    private static volatile Integer first;

    /** Passes on to a stream that changes: some tools keep the System.out that they found first. */
    private static final class Switch extends OutputStream {
        private volatile OutputStream target;

        Switch(OutputStream target) {
            this.target = target;
        }

        @Override
        public void write(int value) throws java.io.IOException {
            target.write(value);
        }

        @Override
        public void write(byte[] bytes, int start, int length) throws java.io.IOException {
            target.write(bytes, start, length);
        }
    }

    public static void main(String[] ignored) throws Exception {
        PrintStream results = System.out;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        Switch out = new Switch(OutputStream.nullOutputStream());
        Switch err = new Switch(System.err);
        System.setOut(new PrintStream(out, true));
        System.setErr(new PrintStream(err, true));
        List<Runnable> hooks = new ArrayList<>();
        Exit.Procedure end = (code, message) -> {
            // Some tools catch everything, and exit again with another code: the first one counts.
            if (first == null) {
                first = code;
            }
            out.target = OutputStream.nullOutputStream();
            err.target = OutputStream.nullOutputStream();
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        String line;
        while ((line = commands.readLine()) != null) {
            String decoded = new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8);
            String[] parts = decoded.split("\0", -1);
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            out.target = output;
            err.target = errors;
            System.setIn(new ByteArrayInputStream(parts[0].getBytes(StandardCharsets.UTF_8)));
            first = null;
            int code = run(parts[1], Arrays.copyOfRange(parts, 2, parts.length));
            hooks.forEach(Runnable::run);
            hooks.clear();
            Base64.Encoder base64 = Base64.getEncoder();
            results.println(code + " " + base64.encodeToString(output.toByteArray())
                + " " + base64.encodeToString(errors.toByteArray()));
            results.flush();
        }
    }

    private static int run(String name, String[] arguments) {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return first == null ? 0 : first;
        } catch (InvocationTargetException failure) {
            if (failure.getCause() instanceof Ended) {
                return first;
            }
            failure.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException failure) {
            failure.printStackTrace();
            return 1;
        }
    }
}
