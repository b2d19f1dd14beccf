/** The few parts of Swagger UI that this page uses; the package has no types of its own. */
declare module "swagger-ui-dist/swagger-ui-es-bundle.js" {
  export interface SwaggerRequest {
    url: string;
    userFetch?: typeof fetch;
  }

  export interface SwaggerUi {
    preauthorizeApiKey(scheme: string, value: string): void;
    readonly authActions: { logout(schemes: readonly string[]): void };
  }

  export default function swaggerUi(options: Readonly<Record<string, unknown>>): SwaggerUi;
}
