"""The face that clients of OpenAI's interface know: completions, models and tokens, without any session."""
