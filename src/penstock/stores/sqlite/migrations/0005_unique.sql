-- The place of another step.
SELECT 1;
