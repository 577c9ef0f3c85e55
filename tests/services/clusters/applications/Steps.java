import java.nio.file.Files;
import java.nio.file.Path;
import java.util.UUID;
import org.apache.spark.api.java.function.ForeachPartitionFunction;
import org.apache.spark.sql.SparkSession;

/** Leaves a mark for each start of its driver and for each of its tasks, until a file tells it to finish or to fail. */
public final class Steps {
    public static void main(String[] arguments) throws Exception {
        Path marks = Path.of(arguments[0]);
        mark(marks, "driver", System.getenv("TRIGGERER_RUN_TOKEN"));
        SparkSession spark = SparkSession.builder().getOrCreate();
        String folder = marks.toString();
        while (!Files.exists(marks.resolve("finish"))) {
            if (Files.exists(marks.resolve("fail"))) {
                throw new IllegalStateException("there are no orders today");
            }
            ForeachPartitionFunction<Long> task = rows -> mark(Path.of(folder), "task", "");
            spark.range(0, 2, 1, 2).foreachPartition(task);
            Thread.sleep(100);
        }
        spark.stop();
    }

    private static void mark(Path marks, String kind, String text) throws Exception {
        Path draft = marks.resolve("draft " + UUID.randomUUID());
        Files.writeString(draft, text);
        Files.move(draft, marks.resolve(kind + " " + UUID.randomUUID()));
    }
}
