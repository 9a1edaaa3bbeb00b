/** Ends an exchange that its caller aborts, or in which nothing is heard for too long. */

/** The signal of one exchange. */
export class Watch {
  readonly #controller = new AbortController();
  readonly #milliseconds: number;
  readonly #others: readonly AbortSignal[];
  readonly #abort = (): void => this.abort();
  #expired = false;

  constructor(seconds: number, others: readonly (AbortSignal | undefined)[]) {
    this.#milliseconds = seconds * 1000;
    this.#others = others.filter((other) => other !== undefined);
    for (const other of this.#others) {
      other.addEventListener("abort", this.#abort);
      if (other.aborted) {
        this.abort();
      }
    }
  }

  /** For `fetch`. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Whether the time ran out. */
  get expired(): boolean {
    return this.#expired;
  }

  /** Wait for something, but not longer than a silence may last. */
  async during<T>(work: Promise<T>): Promise<T> {
    const timer = setTimeout(() => {
      this.#expired = true;
      this.abort();
    }, this.#milliseconds);
    try {
      return await work;
    } finally {
      clearTimeout(timer);
    }
  }

  /** End the exchange. */
  abort(): void {
    this.#controller.abort();
  }

  /** Let go of the other signals. */
  end(): void {
    for (const other of this.#others) {
      other.removeEventListener("abort", this.#abort);
    }
  }
}
