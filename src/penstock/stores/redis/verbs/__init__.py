"""The verbs: each is a generator that yields calls, and makes the verb's answer from the server's answers."""
